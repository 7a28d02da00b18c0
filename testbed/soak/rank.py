"""What a soak does in the ranks' workers: groups opened, put to work at the same time, and closed."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from testbed.collectives.group import GroupSpec
from testbed.collectives.registry import open_transport
from testbed.collectives.transport import Counters, Tensor, Transport
from testbed.errors import CollectiveError
from testbed.soak.scenario import Scenario, make_input
from testbed.worker import WorkerContext

__all__ = ["Work", "close_groups", "count_frames", "digest", "fetch", "open_groups", "reduce_groups"]

@dataclass
class Work:
    """What a rank has done of a group's all-reduces.

    :param digests: Of the results that came, in order.
    :param error: Why no more came.
    """

    digests: list[bytes] = field(default_factory=list)
    error: str | None = None


@dataclass
class _Opened:
    transport: Transport
    results: list[Tensor] = field(default_factory=list)


class _Groups(dict[int, _Opened]):
    """A worker's groups, by index."""


def open_groups(context: WorkerContext, transport: str, specs: Mapping[int, GroupSpec]) -> None:
    """Open and connect this rank's groups.

    :param specs: By index of the group.
    """
    groups = context.keep(_Groups())
    for index, spec in specs.items():
        groups[index] = _Opened(context.resources.enter_context(open_transport(transport, context, spec)))
        groups[index].transport.connect()


def reduce_groups(context: WorkerContext, scenario: Scenario) -> dict[int, Work]:
    """Do all groups' all-reduces, each group's one after the other.

    :returns: By index of the group.
    """
    groups = context.get(_Groups)
    with ThreadPoolExecutor(len(groups)) as pool:
        works = {index: pool.submit(_reduce, scenario, index, opened) for index, opened in groups.items()}
        return {index: work.result() for index, work in works.items()}


def _reduce(scenario: Scenario, group: int, opened: _Opened) -> Work:
    work = Work()
    opened.results.clear()
    rank = opened.transport.spec.rank
    for number in range(len(scenario.groups[group].summands)):
        try:
            result = opened.transport.all_reduce(make_input(scenario, group, number, rank))
        except CollectiveError as error:
            work.error = str(error)
            break
        opened.results.append(result)
        work.digests.append(digest(result))
    return work


def digest(result: Tensor) -> bytes:
    """Tell results apart without sending them."""
    return hashlib.blake2b(result.tobytes()).digest()


def fetch(context: WorkerContext, group: int, summand: int) -> Tensor:
    """One all-reduce's result, to be looked at."""
    return context.get(_Groups)[group].results[summand]


def count_frames(context: WorkerContext) -> Counters:
    """What this host's ranks have sent since they connected."""
    groups = context.get(_Groups)
    return sum((opened.transport.counters() for opened in groups.values()), Counters())


def close_groups(context: WorkerContext) -> None:
    """Close all groups."""
    for opened in (context.drop(_Groups) or {}).values():
        opened.transport.close()
