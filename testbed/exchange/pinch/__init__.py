"""Neighbourhood aggregation inside the kernel: the process of a rank, beside its programs
(docs/pinch.md).
"""
