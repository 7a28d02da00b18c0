"""The policies of the streaming partitioner by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.core.registry import Registry

if TYPE_CHECKING:  # which takes numpy: command lines read this file for their help
    from testbed.gnn.streaming.edge_policy import Policy

__all__ = ["POLICIES"]

_HERE = "testbed.gnn.streaming.policies"
POLICIES: Registry[type[Policy]] = Registry(
    "policy",
    "testbed.gnn.streaming.edge_policy:Policy",
    {
        "eec": f"{_HERE}:Eec",
        "oec": f"{_HERE}:Eec",
        "iec": f"{_HERE}:Iec",
        "hvc": f"{_HERE}:Hvc",
        "hovc": f"{_HERE}:Hvc",
        "hivc": f"{_HERE}:Hivc",
        "cvc": f"{_HERE}:Cvc",
        "fec": f"{_HERE}:Fec",
        "fennel": f"{_HERE}:Fec",
        "gvc": f"{_HERE}:Gvc",
        "ginger": f"{_HERE}:Gvc",
        "svc": f"{_HERE}:Svc",
        "sugar": f"{_HERE}:Svc",
        "dbh": f"{_HERE}:Dbh",
        "hdrf": f"{_HERE}:Hdrf",
        "hash": f"{_HERE}:Hash",
        "metis": f"{_HERE}:Metis",
    },
    group="testbed.policies",
)
