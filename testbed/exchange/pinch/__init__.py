"""Neighbourhood aggregation in the kernel: the process of a rank (docs/pinch.md)."""
