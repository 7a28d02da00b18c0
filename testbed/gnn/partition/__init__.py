"""Partitioning a graph's vertices among ranks: one interface, several partitioners, and their
quality.
"""

from testbed.gnn.partition.partitioner import Owners, Partitioner
from testbed.gnn.partition.quality import Quality, measure
from testbed.gnn.partition.registry import PARTITIONERS, cached_owners, make_owners

__all__ = [
    "PARTITIONERS",
    "Owners",
    "Partitioner",
    "Quality",
    "cached_owners",
    "make_owners",
    "measure",
]
