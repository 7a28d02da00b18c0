"""Netlink, ethtool and sysctl inside the network namespace of another process."""

import ctypes
import fnmatch
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError
from pyroute2.netlink.exceptions import NetlinkError

from testbed.core.closing import Stacked
from testbed.core.errors import KernelError
from testbed.core.logs import logger_of

__all__ = ["FEATURES", "NetworkNamespace"]

T = TypeVar("T")

logger = logger_of(__name__)

CLONE_NEWNET = 0x40000000  # linux/sched.h

#: Offloads by the short names of ``ethtool -K``, as patterns of the kernel's names
#: (net/ethtool/common.c). ETHTOOL_STSO and its like are not used: they leave
#: tx-tcp-accecn-segmentation on.
FEATURES = {
    "tx": "tx-checksum-*",
    "tso": "tx-tcp*-segmentation",
    "gso": "tx-generic-segmentation",
    "gro": "rx-gro",
}


class NetworkNamespace(Stacked):
    """Sockets in the network namespace of process ``pid``. A context manager.

    A socket belongs to the namespace in which it was created, wherever it is used later.
    """

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/ns/net"

    def _enter(self, stack: ExitStack) -> None:
        self.fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, self.fd)
        # IPRoute(netns=...) would fork the controller for this.
        netlink = inside(self.fd, netlink_socket)
        self.route = stack.enter_context(IPRoute(fileno=netlink.detach()))  # takes ownership
        self._ethtool = inside(self.fd, IoctlEthtool)
        stack.callback(self._ethtool.close)

    def request(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """A call of pyroute2's IPRoute.

        :raises KernelError: The kernel refused it.
        """
        try:
            return getattr(self.route, method)(*arguments, **keywords)
        except NetlinkError as error:
            what = " ".join(
                [method, *map(str, arguments), *(f"{k}={v}" for k, v in keywords.items())]
            )
            raise KernelError(f"netlink: {what}: {error}") from error

    def index(self, ifname: str) -> int:
        """Index of an interface.

        :raises KernelError: There is no interface with this name.
        """
        indices: list[int] = self.request("link_lookup", ifname=ifname)
        if not indices:
            raise KernelError(f"there is no interface {ifname} in {self._path}")
        return indices[0]

    def offload(self, ifname: str, **features: bool) -> None:
        """Switch offloads: ``ethtool -K <ifname> tso off ...``.

        :param features: Named as in :data:`FEATURES`.
        :raises KernelError: The kernel refused it.
        """
        self._ethtool.change_ifname(ifname)
        listed = self._ethtool.get_features()
        for name, value in features.items():
            for feature in fnmatch.filter(listed.keys(), FEATURES[name]):
                if listed.is_available(feature):
                    listed[feature] = value
        words = " ".join(f"{name} {'on' if on else 'off'}" for name, on in features.items())
        logger.debug("%s: ethtool -K %s %s", self._path, ifname, words)
        try:
            self._ethtool.set_features(listed)
        except (OSError, NotSupportedError) as error:
            raise KernelError(f"ethtool -K {ifname} {features}: {error!r}") from error

    def sysctl(self, values: Mapping[str, Any]) -> None:
        """Set parameters of the namespace: ``sysctl -w net.<key>=<value>``."""

        def write() -> None:
            # /proc/sys/net shows the namespace of the task that opens it, and a thread is a task.
            for key, value in values.items():
                Path("/proc/sys/net", *key.split(".")).write_text(str(value), encoding="utf-8")

        inside(self.fd, write)


def netlink_socket() -> socket.socket:
    """A socket for rtnetlink. It is a datagram socket because asyncio insists on one; the kernel
    treats it like a raw one.
    """
    return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE)


def inside(fd: int, function: Callable[[], T]) -> T:
    """Run ``function`` in the network namespace ``fd``, in a thread of its own, because setns(2)
    moves the calling thread.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(fd, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns(CLONE_NEWNET)")
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
