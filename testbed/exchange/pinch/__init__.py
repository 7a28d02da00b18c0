"""Neighbourhood aggregation inside the kernel: the process of a rank (docs/pinch.md)."""
