"""One rank's end of a collective, be it an all-reduce or an exchange: connect, time, count and
close.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from testbed.core.closing import Closing
from testbed.plan import Datapath

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Collective", "Counters"]

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True)
class Counters:
    """What this rank has sent since the backend was connected.

    :param packets: Frames. For sockets these are what the network device counts: with TSO one
        "packet" is a super-packet of up to 64 KiB.
    :param wire_bytes: Bytes of these frames with their Ethernet headers.
    :param retransmissions: Retransmitted frames (sockets: TCP segments).
    """

    packets: int = 0
    wire_bytes: int = 0
    retransmissions: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


class Collective(Closing, Generic[Spec]):
    """One rank's end. `close` is not collective.

    :param context: The worker that the rank runs in.
    :param spec: The collective, as this rank sees it.
    """

    name: ClassVar[str]
    needs: ClassVar[Datapath] = "sockets"
    PHASES: ClassVar[tuple[str, ...]]

    def __init__(self, context: WorkerContext, spec: Spec) -> None:
        self.context = context
        self.spec = spec
        self._phases: dict[str, float] = dict.fromkeys(self.PHASES, 0.0)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds that collectives have spent in each of `PHASES` since the start."""
        return self._phases

    @abstractmethod
    def connect(self) -> None:
        """Connect to the other ranks; all ranks call it.

        :raises CollectiveError: A rank did not connect within the group's ``connect_timeout``; the
            text names it.
        """

    @abstractmethod
    def counters(self) -> Counters:
        """What this rank has sent since `connect`, cumulative."""
