"""The interface of all exchanges: open, connect, aggregate, count, close."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.comm.arrays import check_array
from testbed.comm.collective import Collective
from testbed.comm.group import GroupSpec
from testbed.core.errors import SpecError
from testbed.core.tables import checked, path_of
from testbed.exchange.adjacency import Adjacency
from testbed.exchange.options import Adder, Broadcast, ExchangeTerms, Processing, RowType, SumWidth

if TYPE_CHECKING:
    from testbed.exchange.halo import Halo
    from testbed.worker import WorkerContext

__all__ = [
    "MAX_DIM",
    "PHASES",
    "Aggregation",
    "Embeddings",
    "Exchange",
    "ExchangeSpec",
    "Processing",
]

Aggregation = Literal["sum", "weighted", "max"]
"""``mean`` and GCN's normalisation are ``sum`` with rows scaled before and after: see
docs/pinch.md.
"""
Embeddings = NDArray[np.float32]

MAX_DIM = 512
PHASES = ("quantize", "send", "wait", "aggregate", "dequantize")
"""The parts of an exchange's time. An exchange leaves parts at zero that it does not have or cannot
measure.
"""


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """What one rank has to know to open an exchange; everything except `group.rank` and `halo` is
    equal on all ranks. Picklable.

    An exchange is one direction of one layer: it is opened once, and used once or more per epoch.

    :param group: The members. Its id is the exchange's own: no backend and no other exchange that
        is open has it.
    :param halo: Which vertices this rank owns, sends and receives.
    :param dim: Elements of an embedding, 1..512.
    :param aggregation: ``sum``, ``weighted`` (with `Halo.weights`), or ``max`` (elementwise).
    :param bound: Of `ExchangeTerms`, as are the others that are not explained here.
    :param exponent: All ranks' magnitudes are below ``2**exponent``, so ranks need not agree on a
        scale; larger ones are an error (pinch with clones). None: ranks agree every time.
    :raises SpecError: A field is out of range.
    """

    group: GroupSpec
    halo: Halo
    dim: int
    aggregation: Aggregation = "sum"
    bound: float | None = None
    staleness: int = 10
    exponent: int | None = None
    broadcast: Broadcast | None = None
    processing: Processing = "pinned"
    aggregate: Adder | None = None
    sums: SumWidth = "wide"
    dtype: RowType | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= MAX_DIM:
            raise SpecError(f"exchange: dim = {self.dim}: must be 1..{MAX_DIM}")
        terms = {key: getattr(self, key) for key in ExchangeTerms.model_fields}
        found = checked(ExchangeTerms, terms, lambda place: f"exchange: {path_of(place)} =")
        for key in ("broadcast", "aggregate", "dtype"):
            object.__setattr__(self, key, getattr(found, key))
        if self.bound is not None and self.aggregation == "max" and self.broadcast == "tc":
            raise SpecError(
                "exchange: bound: with broadcast = tc, aggregation must be sum or weighted, since a"
                " maximum cannot be taken back"
            )
        if self.aggregation == "weighted" and self.halo.weights is None:
            raise SpecError("exchange: aggregation = 'weighted': needs a halo with weights")
        if self.exponent is not None and (
            self.bound is not None or not -126 <= self.exponent <= 127
        ):
            raise SpecError(
                f"exchange: exponent = {self.exponent}: must be -126..127, without bound"
            )


class Exchange(Collective[ExchangeSpec]):
    """One direction of one layer; all ranks call `connect` and `aggregate` together.

    :param forms: Whether partial sums are formed before `_aggregate`, instead of by it.
    """

    PHASES = PHASES

    def __init__(self, context: WorkerContext, spec: ExchangeSpec, forms: bool = True) -> None:
        super().__init__(context, spec)
        sums = spec.halo.sums if forms else None
        self._forms: Adjacency | None = None
        if sums is not None:
            self._forms = Adjacency(
                sums.indptr, sums.indices, sums.weights, spec.dim, spec.aggregation
            )
            self._rows = np.empty((len(sums.numbers), spec.dim), np.float32)

    def aggregate(self, x: Embeddings, out: Embeddings | None = None) -> Embeddings:
        """Aggregate what this rank's vertices receive from their neighbours on other ranks; all
        ranks call it.

        :param x: C-contiguous float32 of shape (owned vertices, dim): all of this rank's
            embeddings, which stay unchanged.
        :param out: Where the aggregates go: a writable array of the same shape, or None for a new
            one.
        :returns: `out`. A vertex without neighbours elsewhere has 0 (``max``: -inf).
        :raises SpecError: An array has the wrong type, layout or shape, or `out` is read-only or
            overlaps `x`; nothing has been sent.
        :raises CollectiveError: The exchange could not complete, or a value is not finite; the text
            names the rank.
        """
        shape = self.spec.halo.num_owned, self.spec.dim
        check_array("aggregate", "x", x, shape)
        if out is None:
            out = np.empty(shape, np.float32)
        check_array("aggregate", "out", out, shape, written=True)
        if np.may_share_memory(out, x):
            raise SpecError("aggregate: out overlaps x: must be memory of its own")
        rows = np.asarray(x)
        if self._forms is not None:
            started = time.perf_counter()
            self._forms.aggregate(rows, self._rows)
            if self.spec.aggregation == "max":
                self._keep_nonfinite(rows)
            self._phases["aggregate"] += time.perf_counter() - started
            rows = self._rows
        self._aggregate(rows, np.asarray(out))
        return out

    def _keep_nonfinite(self, x: Embeddings) -> None:
        """Make NaN of partial maxima over values that are not finite, which a maximum may hide."""
        sums = self.spec.halo.sums
        bad = np.asarray(~np.isfinite(x).all(axis=1))
        if sums is not None and bad.any():
            found = np.logical_or.reduceat(bad[sums.indices], sums.indptr[:-1])
            self._rows[found] = np.nan

    @abstractmethod
    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        """Implement `aggregate` for checked arrays.

        :param x: The rows to which the halo's positions refer: `Halo.sums` of the embeddings, or
            the embeddings themselves; if it forms partial sums itself, the embeddings.
        """

    def measures(self) -> dict[str, float]:
        """Further counts of this exchange, cumulative since `connect`, by metric:
        ``redundant_bytes``, ``cache_hits``, ...
        """
        return {}
