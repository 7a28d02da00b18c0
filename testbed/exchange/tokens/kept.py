"""What a rank remembers in order not to send rows that have hardly changed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.tokens.layout import Layout
from testbed.kernel.abi import Struct

__all__ = ["Cache"]


class Cache:
    """``struct token_cache``, and its memory.

    Partners keep the rows of this rank as they were last sent, so all get the same. What travels
    are rows, not differences: nothing accumulates, and a row may be rounded by steps of its own.

    :ivar store: The rows of others as they have last been received, by halo row.
    """

    def __init__(self, spec: ExchangeSpec, layout: Layout) -> None:
        halo = spec.halo
        positions = np.unique(np.concatenate(halo.sends)).astype(np.int64)
        last = np.full((len(positions), spec.dim), np.nan, np.float32)
        age = np.zeros(len(positions), np.uint32)
        changed = np.zeros(len(halo.numbers), np.uint8)
        self.store: NDArray[np.uint8] = np.zeros(
            max(halo.num_halo * layout.form.row_bytes, 1), np.uint8
        )
        large = np.zeros(len(positions), np.uint8)
        self._memory: list[NDArray[Any]] = [positions, last, age, changed, large]  # kept alive
        self.struct = Struct(
            "token_cache",
            marks=True,
            staleness=spec.staleness,
            bound=min(spec.bound or 0.0, float(np.finfo(np.float32).max)),
            positions=positions.ctypes.data,
            rows=len(positions),
            last=last.ctypes.data,
            age=age.ctypes.data,
            changed=changed.ctypes.data,
            large=large.ctypes.data,
            store=self.store.ctypes.data,
        )
