"""Where CPU time goes, and for which host: sampled stacks and counts of the kernel's tracepoints,
by a BPF program that BCC compiles. docs/telemetry.md describes what is measured.
"""
