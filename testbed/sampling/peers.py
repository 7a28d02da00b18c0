"""`Peers`: the other ranks, which own other parts of the graph, over TCP.

Each rank calls every other one, and asks over the connection that it has called with; threads of
C (``testbed/native/parts.c``) answer, whatever the rank's process does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum
from socket import socket
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.comm.group import GroupSpec
from testbed.comm.rendezvous import Rendezvous
from testbed.core.closing import Closing
from testbed.core.errors import CollectiveError, TestbedError
from testbed.gnn.sampling import Drawn, Vertices
from testbed.kernel.abi import Struct, constant, dtype
from testbed.native import load
from testbed.sampling.graph_part import Part

__all__ = ["Peers"]

_BUFFER_BYTES = 1 << 20
_SAMPLE, _ROWS = constant("PARTS_SAMPLE"), constant("PARTS_ROWS")


class _Outcome(IntEnum):
    """``enum parts_outcome``."""

    FINE = constant("PARTS_FINE")
    GONE = constant("PARTS_GONE")
    SILENT = constant("PARTS_SILENT")
    FOREIGN = constant("PARTS_FOREIGN")
    REFUSED = constant("PARTS_REFUSED")


class Peers(Closing):
    """One rank's connections to the others.

    :param part: What this rank owns, and answers questions about.
    :param asks: Connected sockets by rank, on which this rank asks; `answers`: on which others do.
        They stay the caller's.
    :param timeout: Seconds without any progress after which a peer counts as silent.
    :param names: What errors call ranks.
    """

    def __init__(
        self,
        part: Part,
        asks: Mapping[int, socket],
        answers: Mapping[int, socket],
        timeout: float,
        names: Sequence[str],
    ) -> None:
        self.part, self._names, self._timeout = part, names, timeout
        self._open = ExitStack()
        self._ranks = list(asks)
        self._call = load("parts")
        for name in ("parts_ask", "parts_start", "parts_stop"):
            getattr(self._call, name).restype = ctypes.c_int
        self._call.parts_ask.argtypes = [
            *(ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint16, ctypes.c_uint64)
        ]
        self._call.parts_start.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self._call.parts_stop.argtypes, self._call.parts_stop.restype = [ctypes.c_void_p], None
        self._peers = np.zeros(max(len(asks), 1), dtype("parts_peer"))
        for peer, sock in zip(self._peers, asks.values(), strict=False):
            peer["fd"] = sock.fileno()
        self._parts = Struct(
            "parts",
            peers=len(asks),
            timeout_ms=int(timeout * 1e3),
            peer=self._peers.ctypes.data,
        )
        self._server = Struct("parts_server")
        served = self._server.part
        for name, array in (
            ("indptr", part.indptr),
            ("indices", part.indices),
            ("rows", part.rows),
            ("features", part.x),
        ):
            served[name] = array.ctypes.data
        served["vertices"], served["row_bytes"] = len(part.rows), part.x.itemsize * part.x.shape[1]
        self._server.fds[: len(answers)] = [sock.fileno() for sock in answers.values()]
        error = self._call.parts_start(self._server.address, len(answers))
        if error:
            raise TestbedError(f"sampling: cannot start threads: {ctypes.c_int(error).value}")
        self._open.callback(self._call.parts_stop, self._server.address)

    @classmethod
    def connect(cls, part: Part, group: GroupSpec) -> Peers:
        """Connect to all other ranks; a collective.

        :raises CollectiveError: One did not connect in time; the text names it.
        """
        others = [(rank, 0) for rank in range(group.size) if rank != group.rank]
        with ExitStack() as stack:
            rendezvous = Rendezvous("sampling", group, _BUFFER_BYTES, stack)
            called, came = rendezvous.connect(others, others)
            names = [f"rank {member.rank} ({member.name})" for member in group.members]
            asks, answers = (
                {rank: sock for (rank, _), sock in sorted(ends.items())} for ends in (called, came)
            )
            made = cls(part, asks, answers, group.timeout, names)
            made._open.push(stack.pop_all())  # closed after the threads have ended
            made._open.callback(made._call.parts_stop, made._server.address)
            return made

    @property
    def relays(self) -> int:
        """How often this rank has asked and waited."""
        return int(self._parts.relays)

    @property
    def bytes(self) -> int:
        """Bytes of questions and answers of this rank."""
        return int(self._parts.sent_bytes + self._parts.received_bytes)

    def sample(self, vertices: Sequence[Vertices], fanout: int, key: int) -> Drawn:
        """Draw neighbours of vertices, by the ranks that own them.

        :param vertices: Those of each rank, this one's included.
        :returns: Of all, in the order of ranks.
        :raises CollectiveError: A rank did not answer; the text names it.
        """
        rooms = [(len(some) + 3) // 4 * 4 + 4 * fanout * len(some) for some in vertices]
        memory = np.empty(sum(rooms), np.uint8)
        starts = np.cumsum([0, *rooms])
        self._ask(_SAMPLE, vertices, memory, starts, fanout, key)
        counts: list[NDArray[np.int64]] = []
        found: list[Vertices] = []
        for rank, some in enumerate(vertices):
            if rank == self.part.rank:
                own = self.part.draw(some, fanout, key)
                counts.append(np.diff(own.indptr))
                found.append(own.neighbours)
                continue
            start = int(starts[rank])
            counts.append(memory[start : start + len(some)].astype(np.int64))
            first = start + (len(some) + 3) // 4 * 4
            end = first + 4 * int(counts[-1].sum())
            found.append(memory[first:end].view(np.int32))
        indptr = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        return Drawn(indptr, np.concatenate(found))

    def fetch(self, vertices: Sequence[Vertices]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Fetch the features of vertices from the ranks that own them.

        :param vertices: Those of each rank, this one's included.
        :returns: Where each row is, by address, in the order of ranks; and the memory of those that
            have been fetched.
        :raises CollectiveError: A rank did not answer; the text names it.
        """
        row_bytes = int(self._server.part["row_bytes"])
        me = self.part.rank
        sizes = [len(some) * row_bytes * (rank != me) for rank, some in enumerate(vertices)]
        memory, starts = np.empty(sum(sizes), np.uint8), np.cumsum([0, *sizes])
        self._ask(_ROWS, vertices, memory, starts)
        places = [
            (self.part.x.ctypes.data + row_bytes * self.part.rows[some].astype(np.uint64))
            if rank == me
            else memory.ctypes.data + int(starts[rank]) + row_bytes * np.arange(len(some))
            for rank, some in enumerate(vertices)
        ]
        return np.concatenate(places).astype(np.uint64), memory

    def _ask(
        self,
        kind: int,
        vertices: Sequence[Vertices],
        memory: NDArray[np.uint8],
        starts: NDArray[np.int64],
        fanout: int = 0,
        key: int = 0,
    ) -> None:
        kept: list[Any] = []
        for peer, rank in zip(self._peers, self._ranks, strict=False):
            some = np.ascontiguousarray(vertices[rank], np.int32)
            kept.append(some)
            peer["vertices"], peer["count"] = some.ctypes.data, len(some)
            peer["into"] = memory.ctypes.data + int(starts[rank])
            peer["room"] = int(starts[rank + 1] - starts[rank])
        outcome = _Outcome(self._call.parts_ask(self._parts.address, kind, fanout, key))
        if outcome is not _Outcome.FINE:
            culprit = self._names[self._ranks[self._parts.failed]]
            raise CollectiveError(f"sampling: {culprit} {self._describe(outcome)}")

    def _describe(self, outcome: _Outcome) -> str:
        return {
            _Outcome.GONE: "has closed its connection or died",
            _Outcome.SILENT: f"was silent for {self._timeout:g} s",
            _Outcome.FOREIGN: "sent something else than an answer: ranks differ in features",
            _Outcome.REFUSED: "does not own what it was asked about: ranks differ in owners",
        }[outcome]

    def close(self) -> None:
        """Stop answering, and close the connections."""
        self._open.close()
