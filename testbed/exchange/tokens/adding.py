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


def integer_weights(
    weights: NDArray[np.float32], bits: int
) -> tuple[NDArray[np.int64], float]:
    """Round weights to multiples of a power of two; whole weights that fit stay as they are.

    :param bits: Of the lanes that are multiplied. A portion has room for 15 weights, or more.
    :returns: The multiples, and how many of them are 1.
    """
    most = 1 << (24 if bits == 32 else 12)
    largest = float(np.abs(weights).max(initial=0.0))
    whole = largest <= most and not (weights % 1).any()
    scale = 1.0 if whole or not largest else 2.0 ** np.floor(np.log2(most / largest))
    return np.rint(weights.astype(np.float64) * scale).astype(np.int64), float(scale)


@dataclass(frozen=True)
class Adding:
    """The sums that one rank's program forms.

    The summands of a vertex are divided into portions such that no sum overflows, and that none
    takes long. A portion has a part, which is one sum, for each block of columns.

    :param parts: ``struct token_part``; `edges`: ``struct token_edge``.
    :param weights: int64, by edge; empty without weights.
    :param scale: What weights have been multiplied by.
    :param numbers: int64: rows of the result that have summands.
    :param indptr: int64: the portions of each of these.
    :param starts: int64, by portion: what the sum of no lanes would be.
    """

    form: RowFormat
    parts: NDArray[np.void]
    edges: NDArray[np.void]
    weights: NDArray[np.int64]
    scale: float
    numbers: NDArray[np.int64]
    indptr: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def plan(cls, layout: Layout, halo: Halo, aggregation: Aggregation) -> Adding:
        """Find what to add where."""
        form, bits = layout.form, 8 * layout.form.lane_bytes
        count = int(halo.indptr[-1])
        weights, scale = np.ones(count, np.int64), 1.0
        if aggregation == "weighted" and halo.weights is not None:
            weights, scale = integer_weights(halo.weights, bits)
        numbers = np.flatnonzero(np.diff(halo.indptr))
        first = _portions(halo.indptr[numbers], halo.indptr[numbers + 1], np.abs(weights), bits)
        counts = np.diff(np.append(first, count))
        half, full = 1 << (bits - 1), (1 << bits) - 1
        begins = (
            _sums(np.maximum(-weights, 0), first) * full
            if aggregation == "weighted" and bits == 16
            else np.zeros(len(first), np.int64)
        )
        total = np.ones(len(first), np.int64) if aggregation == "max" else _sums(weights, first)
        blocks = form.blocks
        parts = np.zeros((len(first), blocks), dtype("token_part"))
        spans = np.repeat(counts, blocks)
        parts["first"] = (np.cumsum(spans) - spans).reshape(-1, blocks)
        parts["count"], parts["start"] = counts[:, None], begins[:, None]
        # A portion's edges come once for each block.
        chosen = np.repeat(np.repeat(first, blocks), spans) + (
            np.arange(spans.sum()) - np.repeat(parts["first"].reshape(-1).astype(np.int64), spans)
        )
        block = np.repeat(np.tile(np.arange(blocks), len(first)), spans)
        return cls(
            form,
            parts.reshape(-1),
            _edges(layout, halo.indices[chosen], block),
            (weights[chosen] if aggregation == "weighted" else np.zeros(0)).astype(np.int64),
            scale,
            numbers,
            np.searchsorted(first, np.append(halo.indptr[numbers], count)).astype(np.int64),
            begins + half * total,
        )


def _portions(
    begins: NDArray[np.int64], ends: NDArray[np.int64], weights: NDArray[np.int64], bits: int
) -> NDArray[np.int64]:
    """Return the first edge of each portion: its weights add up to what fits into a sum."""
    most = (1 << bits) - 1
    if bits == 32:
        most = (1 << 31) - 1  # a sum has a sign
    total = np.concatenate([[0], np.cumsum(weights)])
    fits = (ends - begins <= _MOST) & (total[ends] - total[begins] <= most)
    found = [begins]
    for begin, end in zip(begins[~fits], ends[~fits], strict=True):
        while begin < end:
            last = int(np.searchsorted(total, total[begin] + most, "right")) - 1
            begin = min(last, begin + _MOST, end)
            found.append(np.array([begin] if begin < end else [], np.int64))
    return np.sort(np.concatenate(found)).astype(np.int64)


def _sums(values: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.add.reduceat(values, first) if len(first) else np.zeros(0, np.int64)


def _edges(layout: Layout, rows: NDArray[np.int32], block: NDArray[np.int64]) -> NDArray[np.void]:
    """Return where blocks of halo rows land."""
    form = layout.form
    slots, ranks, numbers = (
        np.concatenate([np.zeros(0, np.int64), *each])
        for each in zip(
            *(
                (
                    np.full(partner.rows_in, partner.slot),
                    np.full(partner.rows_in, partner.rank),
                    np.arange(partner.rows_in),
                )
                for partner in layout.partners
            ),
            strict=True,
        )
    )
    each = layout.room // (8 * form.words)  # blocks in a frame
    frame, place = np.divmod(numbers[rows] * form.blocks + block, each)
    edges = np.zeros(len(rows), dtype("token_edge"))
    edges["slot"], edges["at"], edges["rank"] = slots[rows] + frame, place * form.words, ranks[rows]
    return edges


class Sums:
    """The sums that a program has formed, as rows of float32.

    :param memory: ``token_sums``.
    """

    def __init__(
        self, adding: Adding, halo: Halo, aggregation: Aggregation, memory: NDArray[Any]
    ) -> None:
        self._adding = adding
        form = adding.form
        self._halves = memory.reshape(2, -1)
        self._call = load("aggregate").take_sums
        pointer = ctypes.c_void_p
        self._call.argtypes = [pointer, pointer, ctypes.c_float, pointer]
        self._call.restype = None
        self._struct = Struct(
            "lane_sums",
            rows=halo.num_owned,
            targets=len(adding.numbers),
            numbers=adding.numbers.ctypes.data,
            dim=form.dim,
            indptr=adding.indptr.ctypes.data,
            starts=adding.starts.ctypes.data,
            blocks=form.blocks,
            words=form.words,
            wide=form.lane_bytes == 4,
            maximum=aggregation == "max",
        )

    def take(self, parity: int, step: float, out: Embeddings) -> None:
        """Write the result of an exchange.

        :param step: The largest of the senders'.
        """
        sums = self._halves[parity].ctypes.data
        self._call(self._struct.address, sums, step / self._adding.scale, out.ctypes.data)
