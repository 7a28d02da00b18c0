"""Links of XDP that other processes hold: finding them, and replacing their programs."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.kernel.libbpf import check, libbpf

__all__ = ["find_link", "opened_program", "program_number", "replace"]

_LINK_XDP = 6  # enum bpf_link_type
_REPLACE = 1 << 2  # BPF_F_REPLACE: only if the program is still the expected one


class _LinkInfo(ctypes.Structure):
    """The head of ``struct bpf_link_info``, as of a link of XDP."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("program", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("ifindex", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 108),
    ]


class _ProgramInfo(ctypes.Structure):
    """The head of ``struct bpf_prog_info``."""

    _fields_ = [("type", ctypes.c_uint32), ("id", ctypes.c_uint32)]


class _UpdateOpts(ctypes.Structure):
    """``struct bpf_link_update_opts``."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("old_prog_fd", ctypes.c_uint32),
    ]


def find_link(ifindex: int, program: int) -> int | None:
    """The number of the link that attaches a program, by its number, to a device; None: no link
    does.

    A device's index is only unique in its namespace, but together with a program it is enough.
    """
    lib, number = libbpf(), ctypes.c_uint32(0)
    while lib.bpf_link_get_next_id(number, ctypes.byref(number)) == 0:
        fd = lib.bpf_link_get_fd_by_id(number)
        if fd < 0:
            continue  # it has ended meanwhile
        info, size = _LinkInfo(), ctypes.c_uint32(ctypes.sizeof(_LinkInfo))
        try:
            check(
                lib.bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)),
                "information about a link",
            )
        finally:
            os.close(fd)
        if (info.type, info.ifindex, info.program) == (_LINK_XDP, ifindex, program):
            return int(number.value)
    return None


@contextmanager
def opened_program(number: int) -> Iterator[int | None]:
    """A descriptor of a loaded program; None: there is none with this number."""
    fd = libbpf().bpf_prog_get_fd_by_id(number)
    if fd == -errno.ENOENT:
        yield None
        return
    check(fd, f"open the program with the number {number}")
    try:
        yield fd
    finally:
        os.close(fd)


def program_number(fd: int) -> int:
    """The number of a loaded program."""
    info, size = _ProgramInfo(), ctypes.c_uint32(ctypes.sizeof(_ProgramInfo))
    check(
        libbpf().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)),
        "information about a program",
    )
    return int(info.id)


def replace(link: int, old: int, new: int) -> bool:
    """Replace a link's program, atomically.

    The link is not held: its owner may end it at any time.

    :param old: Descriptor of the program that it must have now.
    :param new: Descriptor of the other one.
    :returns: False: the link has ended, or has another program.
    :raises KernelError: The kernel refused it for another reason.
    """
    lib = libbpf()
    fd = lib.bpf_link_get_fd_by_id(link)
    if fd == -errno.ENOENT:
        return False
    check(fd, f"open the link with the number {link}")
    try:
        options = _UpdateOpts(ctypes.sizeof(_UpdateOpts), _REPLACE, old)
        result = lib.bpf_link_update(fd, new, ctypes.byref(options))
        if result in (-errno.EPERM, -errno.ENOENT, -errno.ENOLINK):
            return False  # another program, or its device is gone
        check(result, f"replace the program of the link with the number {link}")
        return True
    finally:
        os.close(fd)
