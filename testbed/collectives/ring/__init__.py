"""All-reduce in the kernel: the process of a rank (docs/ring.md)."""
