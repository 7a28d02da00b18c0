"""Mininet topologies, usable with ``mn --custom`` too."""
