"""Mininet hosts, links and switches, and what removes them."""

from testbed.fabric.core import Datapath, Fabric

__all__ = ["Datapath", "Fabric"]
