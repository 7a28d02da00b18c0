"""All-reduce inside the kernel: the process of a rank (docs/ring.md)."""
