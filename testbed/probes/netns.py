"""Network namespaces without a name: they disappear with their last descriptor, and so leave
nothing behind.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence

from testbed.core.closing import Closing
from testbed.probes.finding import command

__all__ = ["Namespace"]

CLONE_NEWNET = 0x40000000  # linux/sched.h
# os.unshare and os.setns need Python 3.12.
libc = ctypes.CDLL(None, use_errno=True)


class Namespace(Closing):
    """A new network namespace, empty except for its loopback, with IPv6 off.

    :raises OSError: No permission to create one (``CAP_SYS_ADMIN``).
    """

    def __init__(self) -> None:
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            checked(libc.unshare(CLONE_NEWNET), "unshare(CLONE_NEWNET)")
            try:
                self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                # Neighbour discovery would send frames of its own, which would be counted.
                with (
                    contextlib.suppress(FileNotFoundError),
                    open(
                        "/proc/sys/net/ipv6/conf/default/disable_ipv6", "w", encoding="utf-8"
                    ) as file,
                ):
                    file.write("1")
            finally:
                checked(libc.setns(before, CLONE_NEWNET), "setns")
        finally:
            os.close(before)

    @property
    def path(self) -> str:
        """A path for commands that take a namespace, such as ``ip link set DEV netns PATH``."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread, and the processes that it starts, into the namespace
        for a while.
        """
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            checked(libc.setns(self.fd, CLONE_NEWNET), "setns")
            try:
                yield
            finally:
                checked(libc.setns(before, CLONE_NEWNET), "setns")
        finally:
            os.close(before)

    def run(self, *commands: Sequence[str]) -> None:
        """Run commands, each a list of words, inside the namespace.

        :raises Missing: A command failed; the text is its output.
        """
        with self.entered():
            for words in commands:
                command(words)

    def add_veth(self, first: str, second: str, into: "Namespace | None" = None) -> None:
        """Make a veth pair.

        :param into: The namespace of the second end, where that is another.
        :raises Missing: The command failed; the text is its output.
        """
        place = ["netns", into.path] if into else []
        self.run(["ip", "link", "add", first, "type", "veth", "peer", "name", second, *place])

    def set_up(self, *devices: str) -> None:
        """Set devices up, in this order.

        :raises Missing: A command failed; the text is its output.
        """
        self.run(*(["ip", "link", "set", device, "up"] for device in devices))

    def close(self) -> None:
        """Release the namespace; the kernel removes it and its devices when nothing else holds
        it.
        """
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def checked(result: int, what: str) -> None:
    """Raise the C library's errno if a call failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
