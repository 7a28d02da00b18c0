"""The rules of the ring: what a rank's programs and its process do (docs/ring.md)."""
