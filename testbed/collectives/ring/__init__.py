"""All-reduce inside the kernel: the process of a rank, beside its programs (docs/ring.md)."""
