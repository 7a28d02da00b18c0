"""Functions that tests call in the ranks' workers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from testbed.comm.collective import Counters
from testbed.core.errors import CollectiveError, WorkerDied
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.worker import WorkerContext
from tests.support.kept import kept


def open_one(context: WorkerContext, name: str, spec: ExchangeSpec) -> None:
    """Open an exchange; later calls identify it by its group's number."""
    exchange = open_exchange(name, context, spec)
    context.resources.enter_context(exchange)
    exchange.connect()
    kept(context)[f"exchange/{spec.group.group_id}"] = exchange


def aggregate(context: WorkerContext, group_id: int, inputs: list[Any]) -> list[Any]:
    """Aggregate several embeddings, one after the other; an error is returned as a result."""
    results: list[Any] = []
    for x in inputs:
        before = x.copy()
        try:
            results.append(kept(context)[f"exchange/{group_id}"].aggregate(x))
        except CollectiveError as error:
            results.append(error)
        assert np.array_equal(x, before, equal_nan=True)
    return results


def errors_of(outcomes: Mapping[str, Any]) -> dict[str, CollectiveError]:
    """Errors of the hosts that live, of `outcomes` of `aggregate` with a single input."""
    return {
        host: outcome[0]
        for host, outcome in outcomes.items()
        if not isinstance(outcome, WorkerDied) and isinstance(outcome[0], CollectiveError)
    }


def count(context: WorkerContext, group_id: int) -> Counters:
    """Return what a rank has sent."""
    counters: Counters = kept(context)[f"exchange/{group_id}"].counters()
    return counters
