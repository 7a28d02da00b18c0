"""What a run makes ranks do: one folder per system, and a registry of them. See
docs/architecture.md, Workloads.
"""
