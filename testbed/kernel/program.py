"""One loaded BPF program: test runs, attaching it, and the links that keep it attached."""

import ctypes
import errno
import os
from dataclasses import dataclass

from testbed.core.closing import Closing
from testbed.core.logs import logger_of
from testbed.kernel.libbpf import LinkCreateOpts, TestRunOpts, check, libbpf
from testbed.kernel.tc import TcFilter

__all__ = [
    "XDP_ABORTED",
    "XDP_DROP",
    "XDP_PASS",
    "XDP_REDIRECT",
    "XDP_TX",
    "Link",
    "Program",
    "TestRun",
]

logger = logger_of(__name__)

XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT = range(5)

_ATTACH_XDP, _ATTACH_TCX_INGRESS, _ATTACH_TCX_EGRESS = 37, 46, 47  # enum bpf_attach_type
_XDP_FLAGS_SKB_MODE, _XDP_FLAGS_DRV_MODE = 1 << 1, 1 << 2  # linux/if_link.h: generic, native only
_BPF_F_BEFORE = 1 << 3  # linux/bpf.h: before all others on the device
_LIVE_FRAMES = 1 << 1  # linux/bpf.h: BPF_F_TEST_XDP_LIVE_FRAMES
_HEADROOM = 4096  # a test run's packet may grow by at most a page


@dataclass(frozen=True)
class TestRun:
    """The result of a program on a packet under ``BPF_PROG_TEST_RUN``.

    :param retval: The program's verdict.
    :param data: The packet afterwards.
    :param duration_ns: Mean time of a run, nanoseconds, as the kernel measured it.
    """

    __test__ = False

    retval: int
    data: bytes
    duration_ns: int


class Link(Closing):
    """A ``bpf_link`` or raw tracepoint: the program stays attached until this descriptor is closed
    or its process exits.
    """

    def __init__(self, fd: int, what: str) -> None:
        self.fd = fd
        self._what = what
        logger.debug("attached %s", what)

    def close(self) -> None:
        """Detach; calling it twice is not an error."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            logger.debug("detached %s", self._what)

    def update(self, program: "Program") -> None:
        """Replace the program atomically, between one packet and the next.

        :raises KernelError: the kernel's errno.
        """
        check(
            libbpf().bpf_link_update(self.fd, program.fd, None), f"update a link to {program.name}"
        )


class Program:
    """One loaded program.

    :param name: Its function's name in the C source.
    :param fd: Its descriptor, owned by the object that it was loaded with.
    """

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self.fd = fd

    def test_run(self, data: bytes, repeat: int = 1) -> TestRun:
        """Run the program on a packet without a network.

        :param data: The frame, from its Ethernet header on (at least 14 bytes, because the kernel
            requires a whole header).
        :param repeat: Number of runs; each run after the first gets the packet that the previous
            one left.
        :raises KernelError: the kernel's errno.
        """
        out = ctypes.create_string_buffer(len(data) + _HEADROOM)
        source = ctypes.create_string_buffer(data, len(data))
        options = TestRunOpts(
            sz=ctypes.sizeof(TestRunOpts),
            data_in=ctypes.addressof(source),
            data_size_in=len(data),
            data_out=ctypes.addressof(out),
            data_size_out=len(out),
            repeat=repeat,
        )
        check(
            libbpf().bpf_prog_test_run_opts(self.fd, ctypes.byref(options)),
            f"test run of {self.name}",
        )
        return TestRun(options.retval, out.raw[: options.data_size_out], options.duration)

    def run_live(self, data: bytes, repeat: int) -> None:
        """Run the program on frames that the kernel makes, and do with each what it says
        (Linux 5.18: ``BPF_F_TEST_XDP_LIVE_FRAMES``).

        :param data: What each frame holds at first, at least 14 bytes; they must fit a page beside
            what the kernel keeps there.
        :param repeat: Number of frames.
        :raises KernelError: the kernel's errno.
        """
        source = ctypes.create_string_buffer(data, len(data))
        options = TestRunOpts(
            sz=ctypes.sizeof(TestRunOpts),
            data_in=ctypes.addressof(source),
            data_size_in=len(data),
            repeat=repeat,
            flags=_LIVE_FRAMES,
        )
        check(
            libbpf().bpf_prog_test_run_opts(self.fd, ctypes.byref(options)),
            f"live run of {self.name}",
        )

    def attach_xdp(self, ifindex: int, generic: bool = False) -> Link:
        """Attach to a device of this network namespace.

        :param generic: In the stack, on socket buffers, instead of natively in the driver.
        :raises KernelError: no native XDP on the device, another program is there, or no such
            device.
        """
        flags, mode = (
            (_XDP_FLAGS_SKB_MODE, "generic") if generic else (_XDP_FLAGS_DRV_MODE, "native")
        )
        options = LinkCreateOpts(sz=ctypes.sizeof(LinkCreateOpts), flags=flags)
        fd = libbpf().bpf_link_create(self.fd, ifindex, _ATTACH_XDP, ctypes.byref(options))
        where = f"{self.name} to the device with index {ifindex} ({mode} XDP)"
        return Link(check(fd, f"attach {where}"), where)

    def attach_tc_ingress(self, ifindex: int) -> Closing:
        """Attach to the ingress of a device in this network namespace, before a bridge or the
        stack.

        With a link (tcx, Linux 6.6), or on older kernels with a filter.

        :raises KernelError: The kernel accepted neither.
        """
        return self._attach_tc(ifindex, False, False)

    def attach_tc(self, ifindex: int, egress: bool = False, first: bool = True) -> Closing:
        """As :meth:`attach_tc_ingress`, also for the egress, beside other programs.

        :param first: Before all programs that are there, instead of after them; without tcx, which
            is first is the kernel's choice.
        :raises KernelError: The kernel accepted neither.
        """
        return self._attach_tc(ifindex, egress, first)

    def _attach_tc(self, ifindex: int, egress: bool, first: bool) -> Closing:
        options = LinkCreateOpts(
            sz=ctypes.sizeof(LinkCreateOpts), flags=_BPF_F_BEFORE if first else 0
        )
        point, word = (_ATTACH_TCX_EGRESS, "egress") if egress else (_ATTACH_TCX_INGRESS, "ingress")
        fd = libbpf().bpf_link_create(self.fd, ifindex, point, ctypes.byref(options))
        if fd == -errno.EINVAL:  # no such type of attachment
            return TcFilter(self.fd, self.name, ifindex, egress)
        where = f"{self.name} to the device with index {ifindex} (tcx {word})"
        return Link(check(fd, f"attach {where}"), where)

    def attach_raw_tracepoint(self, tracepoint: str) -> Link:
        """Attach to a raw tracepoint, such as ``sys_enter``."""
        fd = libbpf().bpf_raw_tracepoint_open(tracepoint.encode(), self.fd)
        where = f"{self.name} to raw tracepoint {tracepoint}"
        return Link(check(fd, f"attach {where}"), where)
