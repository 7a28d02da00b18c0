"""The two TCP neighbours of a rank on a ring: connecting to them, and finding out which rank has
failed.

Every pair of neighbours has two connections: one carries data to the right; the other, unused in
normal operation, carries one-byte notes in both directions. A rank that gives up sends the number
of the rank at fault to both neighbours before it closes, so that all ranks name the same one, and
not the neighbour that closed its connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Literal

from testbed.comm.group import GroupSpec, Member
from testbed.comm.rendezvous import Rendezvous
from testbed.core.errors import CollectiveError

__all__ = ["Neighbours"]

Side = Literal["left", "right"]
_DATA, _NOTES = 0, 1
_ALIVE = 0xFF  # a note that is not a rank's number: "I am waiting as well"
_GRACE = 1.0  # seconds for a note to travel around the ring, after the timeout without progress


class Neighbours:
    """Connections to the right and the left neighbour of a ring of at least two ranks.

    :param spec: The group, as this rank sees it.
    :param buffer_bytes: Socket buffers of the data connections (doubled by the kernel, see
        socket(7)).
    :raises CollectiveError: A neighbour did not connect within the group's ``connect_timeout``.
    """

    def __init__(self, spec: GroupSpec, buffer_bytes: int) -> None:
        self._spec = spec
        self._open = contextlib.ExitStack()
        left, right = spec.left.rank, spec.right.rank
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._open)
            self._rendezvous = Rendezvous("tcp-ring", spec, buffer_bytes, self._open)
            called, came = self._rendezvous.connect(
                [(right, _DATA), (right, _NOTES)], [(left, _DATA), (left, _NOTES)]
            )
            undo.pop_all()
        self.right, self._right_notes = called[right, _DATA], called[right, _NOTES]
        self.left, self._left_notes = came[left, _DATA], came[left, _NOTES]

    def blame(self, side: Side, silent: bool) -> CollectiveError:
        """Find the rank at fault after a data connection failed, notify the neighbours, and return
        the error.

        :param side: The neighbour whose connection failed.
        :param silent: It made no progress for the timeout; otherwise it was closed.
        """
        spec = self._spec
        member = spec.left if side == "left" else spec.right
        if silent:
            self._tell(_ALIVE)
        culprit = self._listen_to_notes(member)
        if culprit is None:
            # It is waiting as well, and no rank has found the cause: the ranks' timeouts expired
            # too far apart.
            return self._rendezvous.error(
                member, f"has got nothing for {spec.timeout:g} s, nor has rank {spec.rank}"
            )
        self._tell(culprit.rank)
        how = (
            f"was silent for {spec.timeout:g} s" if silent else "has closed its connection or died"
        )
        return self._rendezvous.error(culprit, how)

    def _tell(self, note: int) -> None:
        for sock in (self._left_notes, self._right_notes):
            with contextlib.suppress(OSError):
                sock.send(bytes([note]), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def _listen_to_notes(self, suspect: Member) -> Member | None:
        """Read notes until one of them, or the end of a connection, tells the rank at fault.

        :returns: That rank; `suspect` if it stays silent here, too; None if it does not and no rank
            was named.
        """
        notes = {self._left_notes: self._spec.left, self._right_notes: self._spec.right}
        deadline = time.monotonic() + _GRACE
        while (seconds := deadline - time.monotonic()) > 0:
            for sock in select.select(list(notes), [], [], seconds)[0]:
                try:
                    note = sock.recv(1)
                except OSError:
                    note = b""
                if not note:
                    return notes[sock]
                if note[0] != _ALIVE:
                    return self._spec.members[note[0] % self._spec.size]
                if notes[sock] == suspect:
                    suspect, deadline = (
                        self._spec.me,
                        deadline + _GRACE,
                    )  # some rank will name the cause
        return None if suspect == self._spec.me else suspect

    def close(self) -> None:
        """Close all connections."""
        self._open.close()
