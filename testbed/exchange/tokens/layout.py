"""What a rank exchanges with each partner, in frames. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.exchange.adjacency import RowFormat
from testbed.exchange.halo import Halo
from testbed.kernel.abi import constant, dtype

__all__ = ["Layout", "Partner", "rings", "room_of"]

_LINE = constant("TOKEN_LINE")
_HEAD = dtype("token_frame").itemsize
_ETHERNET = 14
_PAGE = constant("TOKEN_PAGE")
_JUMBO = 32 << 10
"""Bytes of data from which on frames that come back are faster than ten times as many of a page:
docs/benchmarks.md.
"""


def rings(mtu: int, native: bool) -> bool:
    """Whether the kernel makes frames when the process rings the doorbell; else they are sent by
    the process, and come back.

    :param native: XDP programs run in the driver; in the stack, redirected frames are lost.
    """
    return native and _most(mtu) < _JUMBO


def _most(mtu: int) -> int:
    return (mtu + _ETHERNET - _HEAD) // _LINE * _LINE


def room_of(mtu: int, native: bool, whole: int = 1) -> int:
    """Bytes of data that a frame has at most: whole cache lines, unless that leaves much unused.

    :param whole: What programs add at once must be whole: so many bytes.
    :raises SpecError: There is no room for one.
    """
    room = min(_most(mtu), _PAGE - _HEAD) if rings(mtu, native) else _most(mtu)
    unit = math.lcm(whole, _LINE)
    if whole > 1 and unit > room // 4:
        unit = whole
    if room < unit:
        least = _HEAD - _ETHERNET + -(-unit // _LINE) * _LINE
        raise SpecError(f"mtu: {mtu} is too small for embeddings: must be {least} or more")
    return room // unit * unit


@dataclass(frozen=True)
class Partner:
    """What goes to another rank and comes from it.

    :param rows_in: Rows that it sends; `rows_out`: those for it.
    :param like: The first partner, by index, that gets the same rows.
    :param slot: The first slot for its frames, of `frames_in`; `out`: the first frame for it, of
        `frames_out`. Where there are no rows, there is one frame that says so; where rows have not
        changed, there are fewer.
    """

    rank: int
    like: int
    rows_in: int
    rows_out: int
    slot: int
    frames_in: int
    out: int
    frames_out: int


@dataclass(frozen=True)
class Layout:
    """The frames of one rank.

    :param room: Bytes of data in a frame.
    :param rings: See `rings`.
    """

    form: RowFormat
    room: int
    partners: tuple[Partner, ...]
    rings: bool

    @classmethod
    def plan(cls, form: RowFormat, halo: Halo, mtu: int, native: bool) -> Layout:
        """Number the frames of a rank with these halo vertices."""
        room, slot, out = room_of(mtu, native, 8 * form.words if form.is_fixed else 1), 0, 0
        partners: list[Partner] = []
        for rank in range(halo.world):
            rows_in, rows_out = len(halo.sources[rank]), len(halo.sends[rank])
            if rank == halo.rank or not rows_in + rows_out:
                continue
            rows = halo.sends[rank]
            same = (np.array_equal(halo.sends[other.rank], rows) for other in partners)
            like = next((index for index, equal in enumerate(same) if equal), len(partners))
            found = Partner(
                *(rank, like, rows_in, rows_out),
                *(slot, _frames(form, rows_in, room)),
                *(out, _frames(form, rows_out, room)),
            )
            partners.append(found)
            slot, out = slot + found.frames_in, out + found.frames_out
        return cls(form, room, tuple(partners), rings(mtu, native))

    @property
    def slots(self) -> int:
        """Frames that arrive in an exchange, at most."""
        return sum(partner.frames_in for partner in self.partners)

    @property
    def outs(self) -> int:
        """Frames that are sent in an exchange, at most."""
        return sum(partner.frames_out for partner in self.partners)

    @property
    def largest(self) -> int:
        """Bytes of data in the largest frame that is sent, and so of one that comes back."""
        most = max((partner.rows_out for partner in self.partners), default=0)
        return min(self.room, _words(self.form, most))

    def step_of(self, partner: Partner) -> tuple[int, int]:
        """Where the step of a partner's fixed lanes lands: a slot, and a byte in it."""
        slot, at = divmod(partner.rows_in * self.form.row_bytes, self.room)
        return partner.slot + slot, at

    def offsets(self) -> NDArray[np.uint32]:
        """Where each halo row lands, in units of 4 bytes from where those of an exchange do; with
        marks, where it is kept.
        """
        if self.form.marked:
            rows = sum(partner.rows_in for partner in self.partners)
            return (self.form.row_bytes * np.arange(rows) // 4).astype(np.uint32)
        places = [
            partner.slot * self.room + self.form.row_bytes * np.arange(partner.rows_in)
            for partner in self.partners
        ]
        return (np.concatenate([np.zeros(0, int), *places]) // 4).astype(np.uint32)


def _words(form: RowFormat, rows: int) -> int:
    """Bytes of a message, in whole words."""
    return (form.message_bytes(rows) + 7) // 8 * 8


def _frames(form: RowFormat, rows: int, room: int) -> int:
    return max(1, -(-_words(form, rows) // room))
