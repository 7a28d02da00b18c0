"""What ranks do in a run: one folder per workload, and a registry. See docs/architecture.md,
Workloads.
"""
