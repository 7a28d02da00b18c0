"""Links of XDP that other processes hold: finding them, and what their programs hand frames on to.

Nothing here is held for longer than a call, because that would keep programs attached that their
owner has detached.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from testbed.kernel.libbpf import check, libbpf
from testbed.kernel.maps import Map

__all__ = ["Attachment", "XdpLink", "program_number", "xdp_links"]

_LINK_XDP = 6  # enum bpf_link_type
_REPLACE = 1 << 2  # BPF_F_REPLACE: only if the program is still the expected one
_MAPS = 64  # of a program, at most (MAX_USED_MAPS in linux/bpf_verifier.h)


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

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("instructions", ctypes.c_uint64 * 4),  # lengths, addresses and the time of loading
        ("user", ctypes.c_uint32),
        ("map_count", ctypes.c_uint32),
        ("maps", ctypes.c_uint64),
    ]


class _MapInfo(ctypes.Structure):
    """The head of ``struct bpf_map_info``."""

    _fields_ = [("numbers", ctypes.c_uint32 * 6), ("name", ctypes.c_char * 16)]


class _UpdateOpts(ctypes.Structure):
    """``struct bpf_link_update_opts``."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("old_prog_fd", ctypes.c_uint32),
    ]


class Attachment(NamedTuple):
    """A link, its device and its program, by the kernel's numbers.

    That of a device is unique in its namespace only, but together with a program it is enough.
    """

    number: int
    ifindex: int
    program: int


class XdpLink:
    """A link of XDP.

    :param number: The kernel's number of it.
    :param table: Name of the map by whose entry 0 a program hands on to another one.
    """

    def __init__(self, number: int, table: str) -> None:
        self._number, self._table = number, table

    def first(self) -> int | None:
        """The number of its program; None: it has ended."""
        found = _link(self._number)
        return found.program if found and found.program else None

    def behind(self, program: int) -> int | None:
        """The program that one hands on to; None: it has no table, or nothing in it."""
        with self._table_of(program) as table:
            try:
                return int.from_bytes(table.lookup(0), "little") if table else None
            except KeyError:
                return None

    def hand_on(self, program: int, following: int) -> bool:
        """Let a program hand on to another one.

        :returns: False: one of them has ended.
        :raises KernelError: The kernel refused it for another reason.
        """
        with self._table_of(program) as table, _opened_program(following) as next_:
            if table is None or next_ is None:
                return False
            table.update(0, next_)
            return True

    def replace(self, old: int, new: int) -> bool:
        """Replace its program, atomically.

        :returns: False: it has ended or has another program than the old one, or one of these has
            ended.
        :raises KernelError: The kernel refused it for another reason.
        """
        lib = libbpf()
        with (
            _opened(lib.bpf_link_get_fd_by_id, self._number, "link") as link,
            _opened_program(old) as before,
            _opened_program(new) as after,
        ):
            if link is None or before is None or after is None:
                return False
            options = _UpdateOpts(ctypes.sizeof(_UpdateOpts), _REPLACE, before)
            result = lib.bpf_link_update(link, after, ctypes.byref(options))
            if result in (-errno.EPERM, -errno.ENOENT, -errno.ENOLINK):
                return False  # another program, or its device is gone
            check(result, f"replace the program of the link with the number {self._number}")
            return True

    @contextmanager
    def _table_of(self, program: int) -> Iterator[Map | None]:
        lib = libbpf()
        with _opened_program(program) as fd:
            numbers = (ctypes.c_uint32 * _MAPS)()
            program_info = _ProgramInfo(map_count=_MAPS, maps=ctypes.addressof(numbers))
            if fd is not None:
                _describe(fd, program_info)
            for number in numbers[: program_info.map_count] if fd is not None else ():
                with _opened(lib.bpf_map_get_fd_by_id, number, "map") as table:
                    if table is None:
                        continue
                    described = _MapInfo()
                    _describe(table, described)
                    if described.name.decode(errors="replace") == self._table:
                        kind, _, key, value, entries, flags = described.numbers
                        yield Map(self._table, table, kind, flags, key, value, entries)
                        return
        yield None


def xdp_links() -> list[Attachment]:
    """All links of XDP, in all network namespaces."""
    lib, number, found = libbpf(), ctypes.c_uint32(0), []
    while lib.bpf_link_get_next_id(number, ctypes.byref(number)) == 0:
        info = _link(number.value)
        if info and info.type == _LINK_XDP:
            found.append(Attachment(info.id, info.ifindex, info.program))
    return found


def program_number(fd: int) -> int:
    """The number of a loaded program."""
    info = _ProgramInfo()
    _describe(fd, info)
    return int(info.id)


def _link(number: int) -> _LinkInfo | None:
    with _opened(libbpf().bpf_link_get_fd_by_id, number, "link") as fd:
        if fd is None:
            return None
        info = _LinkInfo()
        _describe(fd, info)
        return info


def _describe(fd: int, info: ctypes.Structure) -> None:
    """Have the kernel describe a link, program or map."""
    size = ctypes.c_uint32(ctypes.sizeof(info))
    check(
        libbpf().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)),
        "information about a link, program or map",
    )


@contextmanager
def _opened(opening: Any, number: int, what: str) -> Iterator[int | None]:
    """A descriptor of a link, program or map; None: there is none with this number."""
    fd = opening(number)
    if fd in (-errno.ENOENT, -errno.EAGAIN):  # EAGAIN: it is being made
        yield None
        return
    check(fd, f"open the {what} with the number {number}")
    try:
        yield fd
    finally:
        os.close(fd)


def _opened_program(number: int) -> AbstractContextManager[int | None]:
    return _opened(libbpf().bpf_prog_get_fd_by_id, number, "program")
