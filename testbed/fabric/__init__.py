"""Mininet hosts, links and switches, and what removes them."""
