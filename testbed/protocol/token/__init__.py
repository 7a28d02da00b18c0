"""Exchanges by tokens, without I/O or clocks: see docs/pinch.md."""
