"""A ring under faults: what workers do."""

import numpy as np

from testbed.collectives.registry import open_backend
from tests.support.kept import kept


def open_ring(context, name, spec):
    backend = context.resources.enter_context(open_backend(name, context, spec))
    backend.connect()
    kept(context)["backend"] = backend


def reduce_ring(context, rank, times):
    backend = kept(context)["backend"]
    return [
        backend.all_reduce(np.full(20_000, rank + number, np.float32)) for number in range(times)
    ]
