"""What programs add up (``bpf/include/token_add.h``), and what rows become of it. Pure but for
`Sums.take`.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.adjacency import RowFormat
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation, Embeddings
from testbed.exchange.partial_sums import scaled_sums
from testbed.exchange.tokens.layout import Layout
from testbed.kernel.abi import Struct, constant, dtype
from testbed.native import load

__all__ = ["Adding", "Sums", "Weights"]

_MOST = constant("TOKEN_PART")
_SPLIT = 64
"""How often a summand is added at most, in several sums, that is too heavy for one."""


@dataclass(frozen=True)
class Weights:
    """The weights of sums as integers.

    A row's are multiples of a power of two of its own, or themselves if they are whole. A partial
    sum's power of two, by which it has been divided, makes the others coarser only where it would
    have to be added more than `_SPLIT` times.

    :param values: int64, by edge.
    :param scales: float64, by row of the result: how many of its weights are 1.
    """

    values: NDArray[np.int64]
    scales: NDArray[np.float64]

    @classmethod
    def of(cls, halo: Halo, aggregation: Aggregation, bits: int) -> Weights:
        """Round the weights of a halo that `scaled_sums` gives.

        :param halo: Before that.
        :param bits: Of the lanes that are multiplied.
        """
        scaled, how = scaled_sums(halo, aggregation)
        scales = np.ones(halo.num_owned)
        if how != "weighted" or scaled.weights is None:
            return cls(np.ones(len(halo.indices), np.int64), scales)
        weights = scaled.weights.astype(np.float64)
        magnitudes = np.abs(weights)
        if aggregation == "weighted" and halo.weights is not None:
            magnitudes = np.minimum(magnitudes, np.abs(halo.weights))
        else:
            magnitudes = np.minimum(magnitudes, 1.0)
        some = np.diff(halo.indptr) > 0
        first = halo.indptr[:-1][some]
        largest, broken = np.ones(halo.num_owned), np.zeros(halo.num_owned)
        heaviest = np.ones(halo.num_owned)
        if len(first):
            largest[some] = np.maximum.reduceat(magnitudes, first)
            heaviest[some] = np.maximum.reduceat(np.abs(weights), first)
            broken[some] = np.maximum.reduceat(weights % 1, first)
        whole = (broken == 0) & (largest <= _most(bits)) | (largest == 0)
        whole &= heaviest <= _SPLIT * _most(bits)
        target = 24 if bits > 16 else 12
        exponents = target - np.ceil(np.log2(np.where(largest > 0, largest, 1.0)))
        heavy = np.ceil(np.log2(np.maximum(heaviest, 2.0**-1000)))
        exponents = np.minimum(exponents, math.floor(math.log2(_SPLIT * _most(bits))) - heavy)
        scales = np.where(whole, 1.0, np.exp2(exponents))
        by_edge = np.repeat(scales, np.diff(halo.indptr))
        return cls(np.rint(weights * by_edge).astype(np.int64), scales)


def _most(bits: int) -> int:
    """What the magnitudes of the weights of one sum may add up to."""
    return (1 << 31) - 1 if bits > 16 else (1 << 16) - 1


@dataclass(frozen=True)
class Adding:
    """What one rank's program adds, and what rows of the result are made of.

    The summands of a vertex are divided into portions such that no sum overflows, and that none
    takes long. A portion has a part, which is one sum, for each block of columns. A vertex with one
    summand has none: there is nothing to add.

    :param parts: ``struct token_part``; `edges`: ``struct token_edge``.
    :param weights: int64, by edge; empty without weights.
    :param scales: float64, by row of the result that has summands: what its weights have been
        multiplied by.
    :param numbers: int64: these rows.
    :param indptr: int64: the portions of each.
    :param starts: int64, by portion: what the sum of no lanes would be.
    :param places: uint64, by row: at which byte its first summand lands.
    :param senders: uint32, by row: who sends that.
    :param firsts: int64, by row: its weight.
    """

    form: RowFormat
    parts: NDArray[np.void]
    edges: NDArray[np.void]
    weights: NDArray[np.int64]
    scales: NDArray[np.float64]
    numbers: NDArray[np.int64]
    indptr: NDArray[np.int64]
    starts: NDArray[np.int64]
    places: NDArray[np.uint64]
    senders: NDArray[np.uint32]
    firsts: NDArray[np.int64]

    @classmethod
    def plan(cls, layout: Layout, halo: Halo, aggregation: Aggregation) -> Adding:
        """Find what to add where.

        :param halo: Its partial sums travel as `scaled_sums` says.
        """
        form, bits = layout.form, layout.form.lane_bits
        weighted = scaled_sums(halo, aggregation)[1] == "weighted"
        weights = Weights.of(halo, aggregation, bits)
        numbers = np.flatnonzero(np.diff(halo.indptr))
        first_edge = halo.indptr[numbers]
        first_row = halo.indices[first_edge]
        rows, values, indptr = _split(halo, weights.values, bits)
        several = np.flatnonzero(np.diff(halo.indptr) > 1)
        first, last = _portions(indptr[several], indptr[several + 1], np.abs(values), bits)
        half, full = 1 << (bits - 1), (1 << bits) - 1
        start = np.zeros(len(first), np.int64)
        if weighted and form.lane_bytes == 2:
            start = _sums(np.maximum(-values, 0), first, last) * full
        total = 1 if aggregation == "max" else _sums(values, first, last)
        blocks, counts = form.blocks, last - first
        parts = np.zeros((len(first), blocks), dtype("token_part"))
        spans = np.repeat(counts, blocks)
        before = np.cumsum(spans) - spans
        parts["first"] = before.reshape(-1, blocks)
        parts["count"], parts["start"] = counts[:, None], start[:, None]
        parts["plain"] = _sums((values == 1).astype(np.int64), first, last)[:, None]
        # A portion's edges come once for each block, those with a weight of 1 first.
        chosen = np.repeat(np.repeat(first, blocks) - before, spans) + np.arange(spans.sum())
        portion = np.repeat(np.arange(len(parts) * blocks), spans)
        chosen = chosen[np.lexsort((values[chosen] != 1, portion))]
        block = np.repeat(np.tile(np.arange(blocks), len(first)), spans)
        ranks = np.repeat(
            np.array([partner.rank for partner in layout.partners], np.uint32),
            [partner.rows_in for partner in layout.partners],
        )
        return cls(
            form=form,
            parts=parts.reshape(-1),
            edges=_edges(layout, ranks, rows[chosen], block),
            weights=values[chosen] if weighted else values[:0],
            scales=weights.scales[numbers],
            numbers=numbers,
            indptr=np.append(np.searchsorted(first, indptr[numbers]), len(first)).astype(np.int64),
            starts=start + half * total,
            places=4 * layout.offsets()[first_row].astype(np.uint64),
            senders=ranks[first_row],
            firsts=weights.values[first_edge],
        )


def _split(
    halo: Halo, weights: NDArray[np.int64], bits: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return halo rows, weights, and the first edge of each row of the result, with an edge that
    is too heavy for one sum made several.
    """
    most = _most(bits)
    count = np.maximum(-(-np.abs(weights) // most), 1)
    ends = np.cumsum(count)
    values = np.repeat(np.sign(weights) * most, count)
    values[ends - 1] = weights - np.sign(weights) * most * (count - 1)
    indptr = np.concatenate([[0], ends])[halo.indptr]
    return np.repeat(halo.indices, count), values, indptr


def _portions(
    begins: NDArray[np.int64], ends: NDArray[np.int64], weights: NDArray[np.int64], bits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first edge of each portion, and the one behind its last: its weights add up to
    what fits into a sum.
    """
    most = _most(bits)
    total = np.concatenate([[0], np.cumsum(weights)])
    fits = (ends - begins <= _MOST) & (total[ends] - total[begins] <= most)
    firsts, lasts = [begins[fits]], [ends[fits]]
    for begin, end in zip(begins[~fits], ends[~fits], strict=True):
        while begin < end:
            last = int(np.searchsorted(total, total[begin] + most, "right")) - 1
            last = min(last, begin + _MOST, end)
            firsts.append(np.array([begin]))
            lasts.append(np.array([last]))
            begin = last
    first = np.concatenate(firsts).astype(np.int64)
    order = np.argsort(first)
    return first[order], np.concatenate(lasts).astype(np.int64)[order]


def _sums(
    values: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    total = np.concatenate([[0], np.cumsum(values)])
    sums: NDArray[np.int64] = total[last] - total[first]
    return sums


def _edges(
    layout: Layout,
    ranks: NDArray[np.uint32],
    rows: NDArray[np.int32],
    block: NDArray[np.int64],
) -> NDArray[np.void]:
    """Return where blocks of halo rows land.

    :param ranks: By halo row, who sends it.
    """
    room = layout.room
    places = 4 * layout.offsets()[rows].astype(np.int64) + block * 8 * layout.form.words
    edges = np.zeros(len(rows), dtype("token_edge"))
    edges["slot"], edges["at"], edges["rank"] = places // room, places % room // 8, ranks[rows]
    return edges


class Sums:
    """Rows of float32, made of lanes that have landed and of the sums that a program has formed.

    :param memory: ``token_sums``.
    :param steps: Of each rank's lanes.
    """

    def __init__(
        self,
        adding: Adding,
        halo: Halo,
        aggregation: Aggregation,
        memory: NDArray[Any],
        steps: NDArray[np.float32],
    ) -> None:
        self._arrays = adding, memory, steps  # kept alive because the structure points to them
        form = adding.form
        self._call = load("aggregate").take_sums
        self._call.argtypes, self._call.restype = [ctypes.c_void_p] * 4, None
        self._struct = Struct(
            "lane_sums",
            rows=halo.num_owned,
            targets=len(adding.numbers),
            numbers=adding.numbers.ctypes.data,
            dim=form.dim,
            indptr=adding.indptr.ctypes.data,
            starts=adding.starts.ctypes.data,
            places=adding.places.ctypes.data,
            senders=adding.senders.ctypes.data,
            weights=adding.firsts.ctypes.data,
            steps=steps.ctypes.data,
            scales=adding.scales.ctypes.data,
            ranks=len(steps),
            blocks=form.blocks,
            words=form.words,
            wide=form.lane_bytes == 4,
            maximum=aggregation == "max",
        )

    def take(self, landed: NDArray[np.uint8], out: Embeddings) -> None:
        """Write the result of an exchange."""
        _, memory, _ = self._arrays
        addresses = landed.ctypes.data, memory.ctypes.data, out.ctypes.data
        self._call(self._struct.address, *addresses)
