"""The ring's rules: what a rank's programs and its process do (docs/ring.md)."""
