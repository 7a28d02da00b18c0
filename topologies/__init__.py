"""Mininet Topo classes: the one source of how hosts and switches are joined; plans are derived from
them.
"""

from typing import TYPE_CHECKING

from testbed.core.registry import Registry

if TYPE_CHECKING:
    from mininet.topo import Topo

__all__ = ["TOPOLOGIES"]

TOPOLOGIES: "Registry[type[Topo]]" = Registry(
    "topology",
    "mininet.topo:Topo",
    {
        "star": "topologies.star:Star",
        "ring": "topologies.ring:Ring",
        "leaf-spine": "topologies.leaf_spine:LeafSpine",
        "fat-tree": "topologies.fat_tree:FatTree",
    },
    group="testbed.topologies",
)
"""Imported on first use."""
