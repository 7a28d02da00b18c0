"""What programs add up (``bpf/include/token_add.h``), and what rows become of it. Pure but for
`Sums.take`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.adjacency import RowFormat
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation, Embeddings
from testbed.exchange.tokens.layout import Layout
from testbed.kernel.abi import Struct, constant, dtype
from testbed.native import load

__all__ = ["Adding", "Sums", "integer_weights"]

_MOST = constant("TOKEN_PART")


def integer_weights(weights: NDArray[np.float32], bits: int) -> tuple[NDArray[np.int64], float]:
    """Round weights to multiples of a power of two; whole weights that fit stay as they are.

    :param bits: Of the lanes that are multiplied.
    :returns: The multiples, and how many of them are 1.
    """
    most = 1 << (24 if bits > 16 else 12)
    largest = float(np.abs(weights).max(initial=0.0))
    whole = largest <= (1 << 16) - 1 and not (weights % 1).any()
    scale = 1.0 if whole or not largest else 2.0 ** np.floor(np.log2(most / largest))
    return np.rint(weights.astype(np.float64) * scale).astype(np.int64), float(scale)


@dataclass(frozen=True)
class Adding:
    """What one rank's program adds, and what rows of the result are made of.

    The summands of a vertex are divided into portions such that no sum overflows, and that none
    takes long. A portion has a part, which is one sum, for each block of columns. A vertex with one
    summand has none: there is nothing to add.

    :param parts: ``struct token_part``; `edges`: ``struct token_edge``.
    :param weights: int64, by edge; empty without weights.
    :param scale: What weights have been multiplied by.
    :param numbers: int64: rows of the result that have summands.
    :param indptr: int64: the portions of each of these.
    :param starts: int64, by portion: what the sum of no lanes would be.
    :param places: uint64, by row: at which byte its first summand lands.
    :param senders: uint32, by row: who sends that.
    :param firsts: int64, by row: its weight.
    """

    form: RowFormat
    parts: NDArray[np.void]
    edges: NDArray[np.void]
    weights: NDArray[np.int64]
    scale: float
    numbers: NDArray[np.int64]
    indptr: NDArray[np.int64]
    starts: NDArray[np.int64]
    places: NDArray[np.uint64]
    senders: NDArray[np.uint32]
    firsts: NDArray[np.int64]

    @classmethod
    def plan(cls, layout: Layout, halo: Halo, aggregation: Aggregation) -> Adding:
        """Find what to add where."""
        form, bits = layout.form, layout.form.lane_bits
        weighted, degree = aggregation == "weighted", np.diff(halo.indptr)
        weights, scale = np.ones(len(halo.indices), np.int64), 1.0
        if weighted and halo.weights is not None:
            weights, scale = integer_weights(halo.weights, bits)
        several, numbers = np.flatnonzero(degree > 1), np.flatnonzero(degree)
        first, last = _portions(
            halo.indptr[several], halo.indptr[several + 1], np.abs(weights), form
        )
        half, full = 1 << (bits - 1), (1 << bits) - 1
        start = np.zeros(len(first), np.int64)
        if weighted and form.lane_bytes == 2:
            start = _sums(np.maximum(-weights, 0), first, last) * full
        total = 1 if aggregation == "max" else _sums(weights, first, last)
        blocks, counts = form.blocks, last - first
        parts = np.zeros((len(first), blocks), dtype("token_part"))
        spans = np.repeat(counts, blocks)
        before = np.cumsum(spans) - spans
        parts["first"] = before.reshape(-1, blocks)
        parts["count"], parts["start"] = counts[:, None], start[:, None]
        parts["plain"] = _sums((weights == 1).astype(np.int64), first, last)[:, None]
        # A portion's edges come once for each block, those with a weight of 1 first.
        chosen = np.repeat(np.repeat(first, blocks) - before, spans) + np.arange(spans.sum())
        portion = np.repeat(np.arange(len(parts) * blocks), spans)
        chosen = chosen[np.lexsort((weights[chosen] != 1, portion))]
        block = np.repeat(np.tile(np.arange(blocks), len(first)), spans)
        ranks = np.repeat(
            np.array([partner.rank for partner in layout.partners], np.uint32),
            [partner.rows_in for partner in layout.partners],
        )
        edge = halo.indptr[numbers]
        row = halo.indices[edge]
        return cls(
            form,
            parts.reshape(-1),
            _edges(layout, ranks, halo.indices[chosen], block),
            weights[chosen] if weighted else weights[:0],
            scale,
            numbers,
            np.append(np.searchsorted(first, edge), len(first)).astype(np.int64),
            start + half * total,
            4 * layout.offsets()[row].astype(np.uint64),
            ranks[row],
            weights[edge],
        )


def _portions(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    weights: NDArray[np.int64],
    form: RowFormat,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first edge of each portion, and the one behind its last: its weights add up to
    what fits into a sum.
    """
    most = (1 << (31 if form.lane_bytes == 4 else 16)) - 1
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
            weights=adding.firsts.ctypes.data if aggregation == "weighted" else 0,
            steps=steps.ctypes.data,
            scale=adding.scale,
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
