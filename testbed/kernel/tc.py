"""A program as a filter of the ``clsact`` qdisc, which is how TC programs were attached before
Linux 6.6 added links.
"""

import ctypes
import errno

from testbed.core.closing import Closing
from testbed.kernel.libbpf import TcHook, TcOpts, check, libbpf

__all__ = ["TcFilter"]

_INGRESS, _EGRESS = 1, 2  # enum bpf_tc_attach_point


class TcFilter(Closing):
    """A direct-action filter on a device's ingress or egress, from the constructor to
    :meth:`close`.

    It outlives its process, but not its device.

    :param fd: The program's descriptor.
    :param name: The program's name.
    :param ifindex: The device, in this network namespace.
    :param egress: On what the device sends instead of what it receives.
    :raises KernelError: The kernel refused qdisc or filter.
    """

    def __init__(self, fd: int, name: str, ifindex: int, egress: bool = False) -> None:
        point, word = (_EGRESS, "egress") if egress else (_INGRESS, "ingress")
        self._hook = TcHook(sz=ctypes.sizeof(TcHook), ifindex=ifindex, attach_point=point)
        self._what = f"{name} on the device with index {ifindex} (clsact {word})"
        created = libbpf().bpf_tc_hook_create(ctypes.byref(self._hook))
        self._made = created != -errno.EEXIST
        if created != -errno.EEXIST:
            check(created, f"attach {self._what}: qdisc")
        options = TcOpts(sz=ctypes.sizeof(TcOpts), prog_fd=fd)
        self._open = False
        check(
            libbpf().bpf_tc_attach(ctypes.byref(self._hook), ctypes.byref(options)),
            f"attach {self._what}",
        )
        self._handle, self._priority = options.handle, options.priority
        self._open = True

    def close(self) -> None:
        """Detach; calling it twice is not an error."""
        if self._open:
            self._open = False
            options = TcOpts(sz=ctypes.sizeof(TcOpts), handle=self._handle, priority=self._priority)
            check(
                libbpf().bpf_tc_detach(ctypes.byref(self._hook), ctypes.byref(options)),
                f"detach {self._what}",
            )
            if not self._made:  # another filter's qdisc
                return
            # With both attach points given, the qdisc itself is removed.
            self._hook.attach_point = _INGRESS | _EGRESS
            check(
                libbpf().bpf_tc_hook_destroy(ctypes.byref(self._hook)),
                f"detach {self._what}: qdisc",
            )
