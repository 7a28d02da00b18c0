"""The process's side of an exchange: native code (``testbed/native/pinch.c``) and its memory."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.comm.group import GroupSpec
from testbed.exchange.interface import Embeddings
from testbed.exchange.pinch.fixed_point import Numbers
from testbed.exchange.pinch.kicks import Kicks
from testbed.exchange.pinch.layout import Bundles
from testbed.exchange.pinch.maps import Maps
from testbed.kernel.abi import Struct, constant
from testbed.native import load

__all__ = ["Process", "Waited"]


class Waited(IntEnum):
    """The result of `Process.wait`: ``enum pinch_waited``."""

    TIME_UP = constant("PINCH_TIME_UP")
    COMPLETE = constant("PINCH_COMPLETE")
    UNFIT = constant("PINCH_UNFIT")
    ENDED = constant("PINCH_OVER")


class Process:
    """The functions of ``testbed/native/pinch.c`` for one exchange. Those that kick raise
    `CollectiveError` if the doorbell is gone.
    """

    def __init__(self, group: GroupSpec, maps: Maps, kicks: Kicks, numbers: Numbers) -> None:
        self._doorbell = kicks.doorbell
        #: Sequence number of the exchange that is open.
        self.seq = 0
        #: Number of frames for each rank.
        self.frames_to = np.zeros(group.size, np.uint64)
        shared = maps.by_name
        seen, hub_queue, sent = (
            shared[f"pinch_{name}"].view(np.uint8) for name in ("seen", "hub_queue", "sent")
        )
        self._native = Struct(
            "pinch",
            format=numbers.format.value,
            control=maps.control.address,
            payloads=maps.payloads.ctypes.data,
            frames=maps.frames.ctypes.data,
            kicks=ctypes.addressof(kicks.flows),
            handshake_kick=ctypes.addressof(kicks.handshake),
            peers=maps.peers.ctypes.data,
            flows=maps.flows.ctypes.data,
            schedule=maps.schedule(0).ctypes.data,
            capacity=maps.capacity,
            frames_to=self.frames_to.ctypes.data,
            seen=seen.ctypes.data,
            acked=maps.acked.ctypes.data,
            hub_queue=hub_queue.ctypes.data,
            landed=maps.landed.ctypes.data,
            banks=len(maps.landed),
            sent=sent.ctypes.data,
            consumer=maps.consumer.ctypes.data,
            producer=maps.producer.ctypes.data,
            kick_count=kicks.count,
            kick_length=kicks.size,
            handshake_kick_length=len(kicks.handshake),
            rank=group.rank,
            ranks=group.size,
            flow_count=len(maps.flows),
            seen_words=shared["pinch_seen"].max_entries,
            acked_words=shared["pinch_acked"].max_entries,
            hub_places=shared["pinch_hub_queue"].max_entries,
            sent_records=shared["pinch_sent"].max_entries,
            doorbell=kicks.doorbell.fd,
            events=maps.events.fd,
        )
        self._address = self._native.address
        self._memory = maps, kicks  # kept alive because native code has addresses in them
        library = load("pinch")
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        rows = [pointer, pointer, pointer]
        library.pinch_send.argtypes = [pointer, *rows, u32, ctypes.c_double, pointer]
        library.pinch_send_some.argtypes = [pointer, *rows, u32, u32, ctypes.c_double, pointer]
        library.pinch_wait.argtypes = [pointer, ctypes.c_int64]
        library.pinch_kick.argtypes = [pointer]
        library.pinch_open.argtypes, library.pinch_open.restype = [pointer, u32], None
        library.pinch_enter.argtypes = [pointer, u32, u32, u32]
        library.pinch_end.argtypes = [pointer, u32, u32, u32]
        library.pinch_highest.argtypes, library.pinch_highest.restype = [pointer], u32
        self._library = library

    def open(self, seq: int) -> None:
        """Accept frames of a sequence number from now on. There is nothing to send yet."""
        self.seq = seq
        self._library.pinch_open(self._address, seq)

    def enter(self, exponent: int, lowest: int, highest: int) -> None:
        """See `Handshakes.enter`; here exponents are encoded as in handshakes."""
        self._doorbell.check(self._library.pinch_enter(self._address, exponent, lowest, highest))

    def highest(self) -> int:
        """The largest exponent of all ranks' values, encoded as in handshakes."""
        return int(self._library.pinch_highest(self._address))

    def end(self, nonfinite: int, gone: int, late: int) -> None:
        """Tell all ranks that exchanges have ended; arguments are ranks, one bit each."""
        self._doorbell.check(self._library.pinch_end(self._address, nonfinite, gone, late))

    def send(
        self, x: Embeddings, bundles: Bundles, factor: float, last: NDArray[np.int32] | None
    ) -> None:
        """Quantize and send, a few frames at a time.

        :param last: See `Numbers.fill`.
        """
        addresses = x.ctypes.data, bundles.order.ctypes.data, bundles.starts.ctypes.data
        before = None if last is None else last.ctypes.data
        self._doorbell.check(
            self._library.pinch_send(self._address, *addresses, len(bundles.to), factor, before)
        )

    def send_some(
        self, x: Embeddings, bundles: Bundles, first: int, end: int, factor: float
    ) -> None:
        """Quantize and send bundles `first` to `end`, those before having been sent."""
        addresses = x.ctypes.data, bundles.order.ctypes.data, bundles.starts.ctypes.data
        self._doorbell.check(
            self._library.pinch_send_some(self._address, *addresses, first, end, factor, None)
        )

    def kick(self) -> None:
        """Kick every flow with one system call, which may process frames for a while."""
        self._doorbell.check(self._library.pinch_kick(self._address))

    def wait(self, seconds: float) -> Waited:
        """Sleep until the exchange is complete, the scale does not fit, exchanges have ended, or
        time is up.
        """
        result = self._library.pinch_wait(self._address, int(max(seconds, 0.0) * 1e9))
        self._doorbell.check(-result if result < 0 else 0)
        return Waited(result)

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in `send` and `wait` since the start, by phase."""
        return {
            phase: getattr(self._native, f"{phase}_ns") * 1e-9
            for phase in ("quantize", "send", "wait")
        }
