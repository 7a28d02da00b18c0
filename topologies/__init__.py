"""Mininet Topo classes: the one source of how hosts and switches are joined; plans are derived from them."""

from mininet.topo import Topo

from topologies.leaf_spine import LeafSpine
from topologies.ring import Ring
from topologies.star import Star

__all__ = ["TOPOLOGIES", "LeafSpine", "Ring", "Star"]

TOPOLOGIES: dict[str, type[Topo]] = {"star": Star, "ring": Ring, "leaf-spine": LeafSpine}
