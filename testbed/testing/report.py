"""What a failed test's report says of its faults: what they did, how to repeat them, and the log
around what is wrong.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import TestbedError
from testbed.faults.identity import KINDS, kind_name
from testbed.faults.rule_table import Action
from testbed.testing.assertions import WrongSum
from testbed.testing.faults import FaultsInForce

if TYPE_CHECKING:
    from testbed.plan import FabricPlan

__all__ = ["explain", "log_lines"]

_LINES = 24  # of the log
_RING = [KINDS[name] for name in ("reduce", "result", "nack")]


def explain(
    test: str, plan: FabricPlan, faults: Sequence[FaultsInForce], error: BaseException | None
) -> str:
    """Write the report's section.

    :param test: Node id of the test.
    :param faults: All that have been in force in the test, in order.
    :param error: What ended it.
    """
    return "\n".join(line for one in faults for line in _section(test, plan, one, error))


def _section(
    test: str, plan: FabricPlan, faults: FaultsInForce, error: BaseException | None
) -> Iterator[str]:
    yield f"seed: {faults.seed}"
    yield f"replay: pytest {shlex.quote(test)} --fault-seed {faults.seed}"
    try:
        yield from faults.summary()
        records = faults.injector.log()
    except TestbedError as lost:
        yield f"the log is gone: {lost}"
        return
    chunk = _chunk(error, plan.mtu) if isinstance(error, WrongSum) else None
    names = [host.name for host in plan.hosts]
    if chunk is None:
        if len(records):
            yield f"last of {len(records)} records:"
        yield from log_lines(records[-_LINES:], names)
        return
    found = _around(records, chunk)
    yield (
        f"records of chunk {chunk}, the first wrong one, and its neighbours ({len(found)} of"
        f" {len(records)}):"
    )
    yield from log_lines(found[:_LINES], names)


def log_lines(records: NDArray[Any], names: Sequence[str]) -> Iterator[str]:
    """Records of a log as a table.

    :param records: Shape (n,), of :data:`testbed.faults.log.RECORD`.
    :param names: Of hosts, by rank.
    """
    if not len(records):
        return
    yield "        ms link      kind     group sequence number  chunk hop attempt  what"
    start = int(records["time"][0])
    for record in records:
        link = f"{names[record['sender']]}->{names[record['receiver']]}"
        what = Action(int(record["action"])).name.lower() if record["fired"] else "passed"
        if record["argument"]:
            what += f" {record['argument']}"
        yield (
            f"{(int(record['time']) - start) / 1e6:10.3f} {link:9}"
            f" {kind_name(int(record['kind'])):8} {record['group']:5} {record['seq']:10}"
            f" {record['chunk']:6} {record['hop']:3} {record['attempt']:7}  {what}"
        )


def _chunk(error: WrongSum, mtu: int) -> int:
    from testbed.collectives.ring.layout import CHECK_BYTES, Layout, chunk_bytes_for

    layout = Layout.plan(error.size, error.lanes, chunk_bytes_for(mtu))
    return error.element // ((layout.length - CHECK_BYTES) // error.lanes.bytes)


def _around(records: NDArray[Any], chunk: int) -> NDArray[Any]:
    """Return the last collective's records of a chunk and of one to either side."""
    ring = records[np.isin(records["kind"], _RING)]
    if not len(ring):
        return ring
    ring = ring[ring["seq"] == ring["seq"][-1]]
    near: NDArray[Any] = ring[np.abs(ring["chunk"].astype(np.int64) - chunk) <= 1]
    return near
