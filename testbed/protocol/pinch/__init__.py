"""The rules of PINCH: what a rank's programs and its process do (docs/pinch.md)."""
