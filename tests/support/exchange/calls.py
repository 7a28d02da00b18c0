"""What tests have the ranks' workers do."""

from typing import Any

import numpy as np

from testbed.comm.backend import Counters
from testbed.core.errors import CollectiveError
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.worker import WorkerContext
from tests.support.kept import kept


def open_one(context: WorkerContext, name: str, spec: ExchangeSpec) -> None:
    """Open an exchange; it is known by its group's number."""
    exchange = open_exchange(name, context, spec)
    context.resources.enter_context(exchange)
    exchange.connect()
    kept(context)[f"exchange/{spec.group.group_id}"] = exchange


def aggregate(context: WorkerContext, group_id: int, inputs: list[Any]) -> list[Any]:
    """Aggregate some embeddings, one after the other; errors are results."""
    results: list[Any] = []
    for x in inputs:
        before = x.copy()
        try:
            results.append(kept(context)[f"exchange/{group_id}"].aggregate(x))
        except CollectiveError as error:
            results.append(error)
        assert np.array_equal(x, before, equal_nan=True)
    return results


def count(context: WorkerContext, group_id: int) -> Counters:
    """Return what a rank has sent."""
    counters: Counters = kept(context)[f"exchange/{group_id}"].counters()
    return counters
