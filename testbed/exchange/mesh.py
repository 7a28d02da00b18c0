"""`Mesh`: TCP connections between ranks that need each other's vertices, and the exchange of rows
over them.

There is one connection per pair, opened once. The loop is C (``testbed/native/mesh.c``): it
packs, sends and receives for all peers at once, and stores what it receives where it is added up.

A rank that gives up sends a note with the rank at fault on all its connections, so that the others
name the same rank, and not the one that closed its connection. Before it blames a rank for being
silent, it sends a note that it is waiting, because the rank that others are waiting for may itself
be waiting for another.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import time
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed import native
from testbed.comm.rendezvous import Rendezvous
from testbed.core.closing import Closing
from testbed.exchange.adjacency import RowFormat, row_source
from testbed.exchange.interface import Embeddings, ExchangeSpec
from testbed.kernel.abi import Struct, constant, dtype

__all__ = ["Mesh"]

# 4 ranks on 2 cores, 2.4 MB to each peer: an exchange took as long with buffers of 1 MiB, longer
# with less, and as long with chunks of 256 KiB; but the larger, the fewer system calls.
BUFFER_BYTES = 4 << 20  # so that messages of common sizes are handed to the kernel at once
CHUNK_BYTES = 1 << 20  # rows gathered at once

_NOTE = constant("MESH_NOTE")
_HEADER = dtype("mesh_header")


class _Outcome(IntEnum):
    """``enum mesh_outcome``."""

    FINE = constant("MESH_FINE")
    GONE = constant("MESH_GONE")
    SILENT = constant("MESH_SILENT")
    FOREIGN = constant("MESH_FOREIGN")
    UNKNOWN_VERTEX = constant("MESH_UNKNOWN_VERTEX")
    NOTED = constant("MESH_NOTED")
    WAITING = constant("MESH_WAITING")


class Mesh(Closing):
    """One rank's connections to its peers: the ranks from which it needs vertices, or which need
    vertices from it.

    :param name: The exchange's, for errors.
    :param pull: Whether rows are requested by the numbers of their vertices, or sent unrequested.
    :param form: How rows travel.
    :raises CollectiveError: A peer did not connect within the group's ``connect_timeout``; the text
        names it.
    """

    def __init__(self, name: str, spec: ExchangeSpec, pull: bool, form: RowFormat) -> None:
        halo, group = spec.halo, spec.group
        counts = [len(source) for source in halo.sources]
        starts = np.cumsum([0, *(_region(form, count) for count in counts)])
        #: What has arrived: a message of each rank.
        self.memory: NDArray[np.uint8] = np.zeros(int(starts[-1]), np.uint8)
        places = [
            start + form.row_bytes * np.arange(count)
            for start, count in zip(starts[:-1], counts, strict=True)
        ]
        #: uint32: where each halo row is in it, in units of 4 bytes.
        self.offsets = (np.concatenate(places) // 4).astype(np.uint32)
        #: float32: the step of each halo row, as of the latest `exchange`; None: rows have none.
        self.steps = np.ones(halo.num_halo, np.float32) if form.stepped else None
        self._trailers = [
            self.memory[start + form.row_bytes * count :][: 4 * (form.stepped * count + 1)]
            for start, count in zip(starts[:-1], counts, strict=True)
        ]
        after = [
            (group.rank + step) % group.size for step in range(1, group.size)
        ]  # not all begin with rank 0
        self._ranks = [rank for rank in after if len(halo.sends[rank]) or len(halo.sources[rank])]
        self._group = group
        self._grace = min(
            1.0, group.timeout / 4
        )  # time for a rank that others wait for to say that it is waiting, too
        patience = group.timeout - self._grace
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._open)
            self._rendezvous = Rendezvous(name, group, BUFFER_BYTES, self._open, patience)
            lower, higher = (
                [(rank, 0) for rank in self._ranks if (rank > group.rank) is late]
                for late in (False, True)
            )
            called, came = self._rendezvous.connect(lower, higher)
            undo.pop_all()
        self._sockets = [(called | came)[rank, 0] for rank in self._ranks]
        self._call = native.load("mesh").mesh_exchange
        self._call.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._peers = np.zeros(len(self._ranks), dtype("mesh_peer"))
        self._positions = _positions(halo.numbers) if pull else np.empty(0, np.int32)
        sums, rows_of = (halo.sums, halo.sends) if pull else halo.in_sending_order()
        self._source = row_source(form, sums, spec.aggregation)
        self._mesh = Struct(
            "mesh",
            peers=len(self._ranks),
            pull=pull,
            timeout_ms=int(patience * 1e3),
            source=self._source.value,
            stepped=form.stepped,
            tag=form.tag(spec.aggregation, halo),
            chunk_rows=CHUNK_BYTES // form.row_bytes,
            positions=self._positions.ctypes.data,
            vertices=len(self._positions),
            peer=self._peers.ctypes.data,
        )
        #: Whether any peer needs a vertex of this rank's.
        self.sends = any(map(len, halo.sends))
        self._arrays: list[Any] = [sums]  # kept alive because the structures point to them
        for peer, rank, sock in zip(self._peers, self._ranks, self._sockets, strict=True):
            requests, sends = (
                np.ascontiguousarray(each[rank], np.int64) for each in (halo.sources, rows_of)
            )
            rows = np.empty_like(sends) if pull else sends
            chunk = np.empty(min(CHUNK_BYTES, len(rows) * form.row_bytes), np.uint8)
            steps = np.empty(len(rows) * form.stepped + 1, np.float32)
            self._arrays += [requests, rows, chunk, steps]
            peer["fd"] = sock.fileno()
            peer["needed"], peer["requests"] = len(requests), requests.ctypes.data
            peer["into"] = self.memory.ctypes.data + int(starts[rank])
            peer["serves"], peer["rows"] = len(rows), rows.ctypes.data
            peer["chunk"], peer["steps"] = chunk.ctypes.data, steps.ctypes.data

    @property
    def send_seconds(self) -> float:
        """Time spent gathering and sending, cumulative."""
        return float(self._mesh.send_ns * 1e-9)

    def exchange(self, x: Embeddings) -> dict[int, float]:
        """Send what peers need of `x`, and fill the memory with what they send.

        :param x: Shape (owned vertices, dim), C-contiguous.
        :returns: The largest magnitude of what each rank has sent, this one included; infinite or
            NaN if a value is. Ranks that have not sent anything are left out.
        :raises CollectiveError: A peer failed; the text names it. The mesh cannot be used any more.
        """
        self._mesh.exchange += 1
        outcome = _Outcome(self._call(self._mesh.address, x.ctypes.data))
        if outcome is _Outcome.FINE:
            return self._arrived()
        cause, failed = ctypes.get_errno(), self._mesh.failed
        culprit = self._ranks[failed]
        if outcome is _Outcome.NOTED:
            *_, why, culprit = self._peers["in"]["header"][failed].item()
            outcome, culprit = _Outcome(why), culprit % self._group.size
        if outcome in (_Outcome.SILENT, _Outcome.WAITING):
            outcome, culprit = self._ask_why(failed, outcome is _Outcome.WAITING)
        self._tell(outcome, culprit)
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        error = self._rendezvous.error(self._group.members[culprit], self._describe(outcome))
        raise error from (
            OSError(cause, os.strerror(cause)) if cause and outcome is _Outcome.GONE else None
        )

    def _arrived(self) -> dict[int, float]:
        """Take the steps of all rows, and return the largest magnitudes."""
        absmax = {self._group.rank: float(np.uint32(self._mesh.absmax).view(np.float32))}
        first = 0
        for rank, trailer in enumerate(self._trailers):
            values = trailer.view(np.float32)
            if self.steps is not None:
                self.steps[first : first + len(values) - 1] = values[:-1]
                first += len(values) - 1
            if rank in self._ranks and self._peers["needed"][self._ranks.index(rank)]:
                absmax[rank] = float(values[-1])
        return absmax

    def _ask_why(self, index: int, waits: bool) -> tuple[_Outcome, int]:
        """Find out whether a silent peer is at fault, or is itself waiting and knows the rank at
        fault.

        :param waits: Whether it has said that it is waiting.
        """
        self._tell(_Outcome.WAITING, self._group.rank)
        sock, peer, rank = self._sockets[index], self._peers[index], self._ranks[index]
        if (
            peer["in"]["done"] and not waits
        ):  # in the middle of a message, where there is no place for a note
            return _Outcome.SILENT, rank
        deadline = time.monotonic() + self._grace * (2 if waits else 1)
        while select.select([sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                note = sock.recv(_HEADER.itemsize)
            except OSError:
                note = b""
            if not note:
                return _Outcome.GONE, rank
            kind, _, why, culprit = np.frombuffer(
                note.ljust(_HEADER.itemsize, b"\0"), _HEADER, 1
            ).item()
            if kind != _NOTE:
                break
            if why != _Outcome.WAITING:
                return _Outcome(why), culprit % self._group.size
            deadline = time.monotonic() + 2 * self._grace
        return _Outcome.SILENT, rank

    def _describe(self, outcome: _Outcome) -> str:
        return {
            _Outcome.GONE: "has closed its connection or died",
            _Outcome.SILENT: f"was silent for {self._group.timeout:g} s",
            _Outcome.FOREIGN: (
                "sent unexpected data: ranks differ in halos, dim, or number of calls"
            ),
            _Outcome.UNKNOWN_VERTEX: "asked a rank for a vertex that it does not own",
        }[outcome]

    def _tell(self, what: _Outcome, culprit: int) -> None:
        """Send a note on all connections that are not in the middle of a message."""
        note = bytes(Struct("mesh_header", kind=_NOTE, exchange=what, bytes=culprit))
        for sock, peer in zip(self._sockets, self._peers, strict=True):
            if not peer["out"]["done"]:
                with contextlib.suppress(OSError):
                    sock.send(note, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close all connections."""
        self._open.close()


def _region(form: RowFormat, rows: int) -> int:
    """Bytes of the memory for a message, in whole cache lines."""
    return (form.message_bytes(rows) + 4 + 63) // 64 * 64


def _positions(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
    """The position of each row up to the last one of this rank; -1: another rank's."""
    positions = np.full(int(numbers[-1]) + 1 if len(numbers) else 0, -1, np.int32)
    positions[numbers] = np.arange(len(numbers), dtype=np.int32)
    return positions
