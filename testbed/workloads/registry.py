"""The workloads by name, which a scenario's key ``workload`` gives."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from testbed.core.errors import SpecError
from testbed.core.registry import Registry

if TYPE_CHECKING:
    from testbed.workloads.workload import Workload

__all__ = ["WORKLOADS", "choose"]

WORKLOADS: "Registry[Workload]" = Registry(
    "workload",
    "testbed.workloads.workload:Workload",
    {
        "ddp": "testbed.workloads.data_parallel:WORKLOAD",
        "gnn": "testbed.workloads.full_graph:WORKLOAD",
        "dnn": "testbed.workloads.dnn:WORKLOAD",
        "module": "testbed.workloads.module:WORKLOAD",
        "sampled": "testbed.workloads.sampled:WORKLOAD",
    },
    group="testbed.workloads",
    instances=True,
)
DEFAULT = "ddp"


def choose(tables: dict[str, Any]) -> str:
    """Return a scenario's workload: the one that it names, else the one whose table it has, else
    `DEFAULT`.

    Workloads of other packages are imported only if they are named, or if there is a table that the
    default does not have. An unknown name is treated as missing; the schema refuses it.
    """
    named = tables.get("scenario")
    name = named.get("workload") if isinstance(named, dict) else None
    with suppress(SpecError):
        if isinstance(name, str) and WORKLOADS[name]:
            return name
    strange = tables.keys() - WORKLOADS[DEFAULT].scenario.model_fields.keys()
    return (
        next((name for name in WORKLOADS if WORKLOADS[name].table in strange), DEFAULT)
        if strange
        else DEFAULT
    )
