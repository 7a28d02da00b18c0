"""Simulation and emulation testbed for collectives that run inside the Linux kernel."""

__version__ = "0.1.0"
