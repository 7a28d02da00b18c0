"""Queueing disciplines at the ends of links: added with tc(8), read out, and removed at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.core.closing import Closing
from testbed.core.errors import FaultError

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Qdisc", "QdiscCounters"]


@dataclass(frozen=True)
class QdiscCounters:
    """The counters of a queueing discipline (``struct gnet_stats_basic``, ``struct
    gnet_stats_queue``).

    :param frames: Frames sent.
    :param size: Their bytes.
    :param dropped: Frames dropped because the queue was full or netem chose to lose them.
    """

    frames: int
    size: int
    dropped: int


class Qdisc(Closing):
    """The root discipline of one interface. It sees frames that the stack or a bridge sends, but
    not those that XDP redirects.

    :param node: Host or switch.
    :param ifname: The interface there.
    :param options: The arguments after ``tc qdisc add dev DEV root``: ``("tbf", "rate", "100mbit",
        ...)``.
    :raises FaultError: The kernel refused it; the text is the kernel's.
    """

    def __init__(self, fabric: Fabric, node: str, ifname: str, options: Sequence[str]) -> None:
        self._fabric, self._node, self._ifname = fabric, node, ifname
        self._kind = options[0]
        command = ["tc", "qdisc", "add", "dev", ifname, "root", *options]
        done = fabric.run(node, command)
        self._there = not done.returncode
        if not self._there:
            words = " ".join(done.stderr.split())
            raise FaultError(
                f"{' '.join(command)}: {words} (`testbed doctor` tries every discipline, and says"
                " what fixes it)"
            )

    def counters(self) -> QdiscCounters:
        """Return the counts so far.

        :raises FaultError: The discipline has gone.
        """
        done = self._fabric.run(
            self._node, ["tc", "-s", "-j", "qdisc", "show", "dev", self._ifname]
        )
        for found in json.loads(done.stdout) if not done.returncode else []:
            if found["kind"] == self._kind and found.get("root"):
                return QdiscCounters(found["packets"], found["bytes"], found["drops"])
        raise FaultError(
            f"{self._kind} on {self._ifname} of {self._node} has gone {done.stderr}".strip()
        )

    def close(self) -> None:
        """Remove it; if it has disappeared with its interface, that is not an error."""
        if self._there:
            self._there = False
            self._fabric.run(self._node, ["tc", "qdisc", "del", "dev", self._ifname, "root"])
