"""The exact results of ``pinch`` in plain numpy: integer sums of lanes. Reference model of
``testbed/native/pinch.c``. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.adjacency import Adjacency, RowLanes
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation
from testbed.exchange.options import Adder, HaloChoice, RowType, SumWidth
from testbed.exchange.partial_sums import scaled_sums
from testbed.exchange.pinch.fixed_point import SLACK, exponent_of
from testbed.exchange.pinch.layout import HEADROOM, is_packed
from testbed.exchange.pinch.vertex_tables import weight_scale
from testbed.exchange.tokens.adding import Weights
from testbed.kernel.abi import constant
from testbed.protocol.rows import (
    fixed_lanes,
    fixed_step,
    pack_bfloat16,
    pack_int16,
    shifted,
    unpack_bfloat16,
)
from testbed.protocol.scale import ScaleGuess
from testbed.testing.graphs import Partitioned
from testbed.testing.reference import agree

__all__ = [
    "Format",
    "HasHalos",
    "Kept",
    "Travelling",
    "exact",
    "exact_aggregates",
    "fixed_aggregates",
    "float_aggregates",
    "integers",
    "magnitude",
    "sent",
    "token_aggregates",
]

FLOAT32 = np.finfo(np.float32)


@dataclass(frozen=True)
class Format:
    """Lanes of 16 or 32 bits.

    :param halved: Half the range: differences of two must fit.
    :param packed: Sums have no more bits than lanes, which leave `HEADROOM` for them.
    """

    bits: int
    halved: bool = False
    packed: bool = False

    @property
    def limit(self) -> int:
        """The largest lane."""
        unused = (1 if self.halved else 0) + (HEADROOM if self.packed else 0)
        return (1 << (self.bits - 1 - unused)) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """A lane on the wire."""
        return np.dtype(f"<i{self.bits // 8}")

    def factor(self, exponent: int) -> float:
        """Lanes per unit, for magnitudes below ``2**exponent``."""
        return self.limit / 2.0**exponent

    def quantize(self, x: NDArray[np.float32], exponent: int) -> NDArray[np.int64]:
        """float32 to lanes. float32 arithmetic suffices for 16 bits, unless lanes are compared with
        earlier ones.
        """
        factor, limit = self.factor(exponent), self.limit
        if self.bits == 16 and not self.halved and factor <= float(FLOAT32.max):
            scaled = np.clip(x * np.float32(factor), np.float32(-limit), np.float32(limit))
        else:
            scaled = np.clip(x.astype(np.float64) * factor, -limit, limit)
        lanes: NDArray[np.int64] = np.rint(scaled).astype(np.int64)
        return lanes

    def dequantize(
        self, sums: NDArray[np.int64], step: float, aggregation: Aggregation
    ) -> NDArray[np.float32]:
        """Accumulators to float32; float32 arithmetic suffices for those of 32 bits."""
        if self.bits == 16 and aggregation != "max":
            return sums.astype(np.float32) * np.float32(step)
        with np.errstate(over="ignore"):  # of what stands for no value
            return (sums.astype(np.float64) * step).astype(np.float32)


class HasHalos(Protocol):
    """All ranks' halos."""

    @property
    def halos(self) -> tuple[Halo, ...]:
        """By rank."""


@dataclass(frozen=True)
class Travelling:
    """What ranks send where a minimum vertex cover travels, with the range of embeddings.

    :param halos: All ranks', as `Pinch` uses them.
    :param aggregation: How received rows are aggregated.
    """

    halos: tuple[Halo, ...]
    aggregation: Aggregation

    @classmethod
    def of(cls, graph: Partitioned, aggregation: Aggregation) -> Travelling:
        """Make that of a graph."""
        scaled = [scaled_sums(halo, aggregation) for halo in graph.covers]
        return cls(tuple(halo for halo, _ in scaled), scaled[0][1])

    def rows(
        self, graph: Partitioned, x: NDArray[np.float32], aggregation: Aggregation
    ) -> NDArray[np.float32]:
        """Form the rows of all ranks, by number, in the float32 arithmetic that exchanges use."""
        found = np.zeros(((1 + graph.world) * len(x), x.shape[1]), np.float32)
        if aggregation == "sum":
            aggregation = self.aggregation
        for halo, part in zip(self.halos, graph.split(x), strict=True):
            sums = halo.sums
            assert sums is not None
            formed = np.empty((len(sums.numbers), x.shape[1]), np.float32)
            Adjacency(sums.indptr, sums.indices, sums.weights, x.shape[1], aggregation).aggregate(
                part, formed
            )
            found[sums.numbers] = formed
        return found


def sent(graph: HasHalos) -> NDArray[np.int64]:
    """Numbers of the rows that some rank sends: those of vertices, or partial sums."""
    return np.unique(
        np.concatenate(
            [halo.numbers[positions] for halo in graph.halos for positions in halo.sends]
        )
    )


def magnitude(x: NDArray[np.float32]) -> int:
    """The exponent on which the ranks that send these embeddings agree."""
    return exponent_of(float(np.abs(x).max(initial=0.0)))


def exact(
    graph: HasHalos,
    lanes: NDArray[np.int64],
    aggregation: Aggregation,
    form: Format,
    exponent: int,
) -> list[NDArray[np.float32]]:
    """Each rank's aggregates of lanes of all rows that travel, by number."""
    found = []
    for halo, sums in zip(graph.halos, integers(graph, lanes, aggregation, form.bits), strict=True):
        scale = weight_scale(halo, form.bits) if aggregation == "weighted" else 1.0
        out = form.dequantize(sums, 1.0 / (form.factor(exponent) * scale), aggregation)
        if aggregation == "max":
            out[np.diff(halo.indptr) == 0] = -np.inf
        found.append(out)
    return found


def integers(
    graph: HasHalos, lanes: NDArray[np.int64], aggregation: Aggregation, bits: int
) -> list[NDArray[np.int64]]:
    """Each rank's accumulators, one lane each."""
    found = []
    for halo in graph.halos:
        target = np.repeat(np.arange(halo.num_owned), np.diff(halo.indptr))
        remote = np.concatenate([np.empty(0, np.int64), *halo.sources])
        summands = lanes[remote[halo.indices]]
        if aggregation == "max":
            sums = np.full((halo.num_owned, lanes.shape[1]), -(1 << (2 * bits - 1)), np.int64)
            np.maximum.at(sums, target, summands)
        else:
            if aggregation == "weighted":
                assert halo.weights is not None
                scale = weight_scale(halo, bits)
                summands = (
                    summands
                    * np.rint(halo.weights.astype(np.float64) * scale).astype(np.int64)[:, None]
                )
            sums = np.zeros((halo.num_owned, lanes.shape[1]), np.int64)
            np.add.at(sums, target, summands)
        found.append(sums)
    return found


def float_aggregates(
    graph: Partitioned,
    x: NDArray[np.float32],
    aggregation: Aggregation,
    choice: HaloChoice = "rows",
    lanes: RowLanes = "float32",
) -> list[NDArray[np.float32]]:
    """What each rank's `aggregate` must give where processes add up rows, bit for bit.

    :param lanes: How rows travel.
    """
    halos = graph.halos_of(choice)
    if choice == "cover":
        x = Travelling(halos, aggregation).rows(graph, x, aggregation)
    return _added(halos, x, aggregation, lanes)


def _added(
    halos: Sequence[Halo], x: NDArray[np.float32], aggregation: Aggregation, lanes: RowLanes
) -> list[NDArray[np.float32]]:
    """What each rank adds up where these rows travel."""
    dim = x.shape[1]
    if lanes == "int16":
        words, steps = pack_int16(x)
        x = words * steps[:, None]  # exact: steps are powers of two
    elif lanes == "bfloat16":
        x = unpack_bfloat16(pack_bfloat16(x))
    found = []
    for halo in halos:
        out = np.empty((halo.num_owned, dim), np.float32)
        Adjacency(
            halo.indptr, halo.indices, halo.weights, dim, aggregation, received=True
        ).aggregate(x[np.concatenate(halo.sources)], out)
        found.append(out)
    return found


class Kept:
    """What ranks keep of one another's rows where rows that have hardly changed are not sent again:
    reference model of ``testbed/native/token_cache.h``.

    :param dtype: As what rows travel; None: the default.
    :ivar hits: Rows that were not sent, `lookups`: all rows that others need.
    """

    def __init__(
        self,
        graph: Partitioned,
        aggregation: Aggregation,
        bound: float,
        staleness: int,
        dtype: RowType | None = None,
        choice: HaloChoice = "rows",
    ) -> None:
        self._graph, self._formed = graph, aggregation
        self._lanes = _lanes_of(dtype)
        self._travelling: HasHalos = graph
        self._aggregation = aggregation
        if choice == "cover":
            covered = Travelling.of(graph, aggregation)
            self._travelling, self._aggregation = covered, covered.aggregation
        self._needed = sent(self._travelling)
        self._bound, self._staleness = np.float32(min(bound, float(FLOAT32.max))), staleness
        self.rows: NDArray[np.float32] | None = None
        self._age: NDArray[np.int64] = np.zeros(0, np.int64)
        self.hits = self.lookups = 0

    def send(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Exchange embeddings; return which of the rows that others need are sent."""
        if isinstance(self._travelling, Travelling):
            x = self._travelling.rows(self._graph, x, self._formed)
        if self.rows is None:
            self.rows, self._age = np.full_like(x, np.nan), np.zeros(len(x), np.int64)
        with np.errstate(invalid="ignore", over="ignore"):
            near = (np.abs(x - self.rows) <= self._bound).all(axis=1)
        old = self._age + 1 >= self._staleness
        changed = ~near | (old & (x != self.rows).any(axis=1))
        self.rows[changed] = x[changed]
        self._age = np.where(changed, 0, self._age + 1)
        found: NDArray[np.bool_] = changed[self._needed]
        self.hits += int((~found).sum())
        self.lookups += len(found)
        return found

    def aggregates(self, x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Exchange embeddings; return what each rank's `aggregate` must give, bit for bit."""
        self.send(x)
        assert self.rows is not None
        return _added(self._travelling.halos, self.rows, self._aggregation, self._lanes)


def token_aggregates(
    graph: Partitioned,
    x: NDArray[np.float32],
    aggregation: Aggregation,
    dtype: RowType | None,
    adder: Adder | None,
    choice: HaloChoice = "rows",
) -> list[NDArray[np.float32]]:
    """What each rank's `aggregate` must give where rows come by tokens, bit for bit.

    :param dtype: As what rows travel; None: the default.
    """
    if adder == "kernel":
        bits = constant("TOKEN_WIDE_BITS" if dtype == "int32" else "TOKEN_BITS")
        return fixed_aggregates(graph, x, aggregation, bits, choice)
    return float_aggregates(graph, x, aggregation, choice, _lanes_of(dtype))


def _lanes_of(dtype: RowType | None) -> RowLanes:
    """As what rows travel that processes add."""
    return "int16" if dtype is None or dtype == "int32" else dtype


def fixed_aggregates(
    graph: Partitioned,
    x: NDArray[np.float32],
    aggregation: Aggregation,
    bits: int,
    choice: HaloChoice = "rows",
) -> list[NDArray[np.float32]]:
    """What each rank's `aggregate` must give where programs add up rows that came by tokens, bit
    for bit.

    :param bits: Of a lane.
    """
    halos, dim = graph.halos_of(choice), x.shape[1]
    if choice == "cover":
        x = Travelling.of(graph, aggregation).rows(graph, x, aggregation)
    found = []
    for halo in halos:
        steps = [fixed_step(x[rows], bits) if len(rows) else 0.0 for rows in halo.sources]
        most, own = max(steps, default=0.0), np.repeat(steps, list(map(len, halo.sources)))
        lanes = [np.zeros((0, dim), np.int64)]
        for rows, step in zip(halo.sources, steps, strict=True):
            if len(rows):
                lanes.append(fixed_lanes(x[rows], step, bits))
        each = np.concatenate(lanes)
        weights = Weights.of(halo, aggregation, bits)
        degree = np.diff(halo.indptr)
        target = np.repeat(np.arange(halo.num_owned), degree)
        by = np.rint(np.log2(most / own)).astype(np.int64)[:, None]
        summands = shifted(each, by)[halo.indices]
        coarse, fine = np.zeros((2, halo.num_owned, dim), np.int64)
        if aggregation == "max":
            fine[:] = np.iinfo(np.int64).min
            np.maximum.at(fine, target, summands)
        else:  # sums may exceed 64 bits: of products with the weights' upper and lower bits
            high = np.sign(weights.values) * (np.abs(weights.values) >> 24)
            np.add.at(coarse, target, summands * high[:, None])
            np.add.at(fine, target, summands * (weights.values - (high << 24))[:, None])
        upper, lower = (coarse >> 8) + (fine >> 32), (coarse % 256 << 24) + fine % 2**32
        sums = upper * 2.0**32 + lower  # rounded once
        out = sums.astype(np.float32) * (most / weights.scales).astype(np.float32)[:, None]
        # Where there is nothing to add, lanes keep their steps.
        edges = halo.indptr[:-1][degree == 1]
        rows = halo.indices[edges]
        products = (1.0 * each[rows] * weights.values[edges, None]).astype(np.float32)
        factors = own[rows] / weights.scales[degree == 1]
        out[degree == 1] = products * factors.astype(np.float32)[:, None]
        out[degree == 0] = -np.inf if aggregation == "max" else 0
        found.append(out)
    return found


def exact_aggregates(
    graph: Partitioned,
    x: NDArray[np.float32],
    aggregation: Aggregation,
    bits: int,
    guess: ScaleGuess | None = None,
    choice: HaloChoice = "rows",
    width: SumWidth = "wide",
) -> list[NDArray[Any]]:
    """What each rank's `aggregate` must give without a cache.

    :param guess: The predicted scale, from the previous exchange, which is updated. None: there was
        no previous one.
    :param choice: What travels.
    :param width: How sums of 32-bit lanes are held.
    """
    travels: HasHalos = graph
    if choice == "cover":
        covered = Travelling.of(graph, aggregation)
        x, aggregation, travels = (
            covered.rows(graph, x, aggregation),
            covered.aggregation,
            covered,
        )
    form = Format(bits, packed=is_packed(width, bits, aggregation))
    seen = magnitude(x[sent(travels)])
    guess = guess or ScaleGuess(slack=SLACK)
    exponent = agree(guess, seen)
    return exact(travels, form.quantize(x, exponent), aggregation, form, exponent)
