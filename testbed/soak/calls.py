"""The part of a soak that runs in the ranks' workers: open groups and exchanges, use them at the
same time, and close them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testbed.collectives.registry import open_backend
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.core.errors import CollectiveError
from testbed.exchange.interface import Exchange, ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.soak import holdings
from testbed.soak.reference import digest
from testbed.soak.scenario import Scenario, make_embeddings, make_input

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Spec", "Work", "close_tasks", "fetch", "open_tasks", "prepare", "trim", "work"]

_REPORT = 1.0  # seconds between reports of progress

Spec = GroupSpec | ExchangeSpec


@dataclass
class Work:
    """The work of a rank for a task.

    :param digests: The digests of the results, in order.
    :param error: Why there are no more results.
    :param sent: What groups and exchanges have sent that are closed now.
    """

    digests: list[bytes] = field(default_factory=list)
    error: str | None = None
    sent: Counters = field(default_factory=Counters)


@dataclass
class _Rank:
    """One rank of a task.

    :param specs: The spec of each round.
    :param inputs: The input of each collective of a round.
    :param end: The open backend or exchange.
    :param results: Results by digest: those of small collectives occur repeatedly.
    """

    specs: Sequence[Spec]
    inputs: list[Tensor]
    times: int
    end: Backend | Exchange | None = None
    results: dict[bytes, Tensor] = field(default_factory=dict)


class _Ranks(dict[int, _Rank]):
    """A worker's ranks, by index of the task."""


def prepare(context: WorkerContext) -> None:
    """Call first: makes the worker return free memory, and close everything when it ends."""
    holdings.one_arena()
    context.resources.callback(_close, context)


def open_tasks(
    context: WorkerContext, scenario: Scenario, specs: Mapping[int, Sequence[Spec]]
) -> None:
    """Draw this rank's inputs, and open and connect what is opened only once.

    :param specs: By index of the task: one spec per round.
    """
    ranks = context.keep(_Ranks())
    for index, rounds in specs.items():
        ranks[index] = _Rank(
            rounds, _inputs(scenario, index, rounds[0]), scenario.tasks[index].times
        )
    for index, rank in ranks.items():
        if len(rank.specs) == 1:
            rank.end = _open(context, scenario, rank.specs[0])
            rank.end.connect()
            context.progress(f"{scenario.label(index)} open")


def work(context: WorkerContext, scenario: Scenario) -> dict[int, Work]:
    """Do all tasks' work, each task's collectives one after the other, and report progress whenever
    this rank has done more of them.

    :returns: By index of the task.
    """
    ranks, reported = context.get(_Ranks), 0
    works = {index: Work() for index in ranks}
    with ThreadPoolExecutor(len(ranks)) as pool:
        left = {
            pool.submit(_work, context, scenario, rank, works[index])
            for index, rank in ranks.items()
        }
        tasks = list(left)
        while left:
            _, left = wait(left, _REPORT)
            done = sum(len(work.digests) for work in works.values())
            if done > reported:
                reported = done
                context.progress(f"collective {done}")
        for task in tasks:
            task.result()
    return works


def fetch(context: WorkerContext, task: int, digest: bytes) -> Tensor:
    """Return one collective's result for inspection."""
    return context.get(_Ranks)[task].results[digest]


def close_tasks(context: WorkerContext) -> Counters:
    """Close everything that is open.

    :returns: What all of them have sent.
    """
    ranks = context.get(_Ranks)
    sent = sum((rank.end.counters() for rank in ranks.values() if rank.end), Counters())
    _close(context)
    return sent


def trim(_context: WorkerContext) -> None:
    """Return free memory to the kernel."""
    holdings.trim()


def _inputs(scenario: Scenario, index: int, spec: Spec) -> list[Tensor]:
    """A rank's input to each collective of a round."""
    if isinstance(spec, GroupSpec):
        return [
            make_input(scenario, index, number, spec.rank)
            for number in range(len(scenario.groups[index].summands))
        ]
    number = index - len(scenario.groups)
    turns = range(len(scenario.exchanges[number].magnitudes))
    return [make_embeddings(scenario, number, turn)[spec.halo.owned] for turn in turns]


def _open(context: WorkerContext, scenario: Scenario, spec: Spec) -> Backend | Exchange:
    if isinstance(spec, GroupSpec):
        return open_backend(scenario.backend, context, spec)
    return open_exchange("pinch", context, spec)


def _work(context: WorkerContext, scenario: Scenario, rank: _Rank, done: Work) -> None:
    try:
        if rank.end:
            _round(rank, rank.end, done)
        else:
            for spec in rank.specs:
                with ExitStack() as stack:
                    end = _open(context, scenario, spec)
                    stack.push(end)
                    stack.callback(_count, end, done)
                    end.connect()
                    _round(rank, end, done)
    except CollectiveError as error:
        done.error = str(error)


def _round(rank: _Rank, end: Backend | Exchange, done: Work) -> None:
    collective: Callable[[Tensor], Tensor] = (
        end.all_reduce if isinstance(end, Backend) else end.aggregate
    )
    for _ in range(rank.times):
        for values in rank.inputs:
            result = collective(values)
            done.digests.append(digest(result))
            rank.results.setdefault(done.digests[-1], result)


def _count(end: Backend | Exchange, done: Work) -> None:
    done.sent += end.counters()


def _close(context: WorkerContext) -> None:
    with ExitStack() as stack:
        for rank in (context.drop(_Ranks) or {}).values():
            if rank.end:
                stack.enter_context(rank.end)
