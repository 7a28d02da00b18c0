"""An XDP program of any object as a part of a chain: it hands on what it passes by a tail call.

Its source need not be there, and nothing is compiled: while libbpf loads the object, a few
instructions are put before the program's own, which become a function that they call. By then,
libbpf has done all else that the object asks for (maps, variables, subprograms, relocations), and
the verifier sees the program as it was written, with the lines of its source. libxdp does the same
with freplace, which locked-down kernels refuse.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.libbpf import PREPARE_LOAD, ProgHandlerOpts, check, libbpf
from testbed.kernel.maps import Map

__all__ = ["Chained"]

_SECTIONS: Final = tuple(
    f"xdp{frags}{kind}" for frags in ("", ".frags") for kind in ("", "/devmap", "/cpumap")
)
_HAS_FRAGS: Final = 1 << 5  # BPF_F_XDP_HAS_FRAGS
_FUNC: Final = 12  # BTF_KIND_FUNC
_STATIC: Final = 0  # BTF_FUNC_STATIC: verified where it is called, with what it is called with
_TYPE: Final = 2  # the third number of struct btf_type: what a function's parameters are
_PASS: Final = 2  # XDP_PASS
_INSTRUCTION: Final = struct.Struct("<BBhi")  # opcode, registers (source, destination), offset


def _handing_on(behind: int) -> bytes:
    """The instructions before those of a program.

    :param behind: Descriptor of the map of the tail call.
    """
    return b"".join(
        _INSTRUCTION.pack(*each)
        for each in (
            (0xBF, 0x16, 0, 0),  # r6 = ctx
            (0x85, 0x10, 0, 8),  # call the program: what follows all this
            (0x56, 0x00, 6, _PASS),  # if (u32)r0 != XDP_PASS, return r0
            (0xBF, 0x61, 0, 0),  # tail_call(r6, behind, 0)
            (0x18, 0x12, 0, behind),
            (0x00, 0x00, 0, 0),
            (0xB7, 0x03, 0, 0),
            (0x85, 0x00, 0, 12),
            (0xB7, 0x00, 0, _PASS),  # nothing follows: r0 = XDP_PASS
            (0x95, 0x00, 0, 0),
        )
    )


@dataclass
class Chained:
    """How the XDP programs of an object are loaded.

    The kernel wants all programs that share a map of programs or devices (prog array, devmap,
    cpumap) to agree whether they take frames in pieces, and so do those of a chain. Which it is
    makes no difference to a program whose frames are in one piece.

    :param program: Name of the one that hands on.
    :param behind: The map of its tail call.
    :param frags: Whether all take frames in pieces, as if their sections were ``xdp.frags``.
    """

    program: str
    behind: Map
    frags: bool

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Have programs of objects that are opened and loaded meanwhile loaded in this way."""
        lib, callback = libbpf(), PREPARE_LOAD(self._prepared)
        options = ProgHandlerOpts(sz=ctypes.sizeof(ProgHandlerOpts), prog_prepare_load_fn=callback)
        _never_the_last()
        kind, place = ctypes.c_int(), ctypes.c_int()
        with ExitStack() as stack:
            for section in _SECTIONS:
                lib.libbpf_prog_type_by_name(
                    section.encode(), ctypes.byref(kind), ctypes.byref(place)
                )
                handler = _register(section, kind.value, place.value, options)
                stack.callback(lib.libbpf_unregister_prog_handler, handler)
            yield

    def opened(self, handle: int) -> None:
        """Describe the function that the program becomes.

        :param handle: The object, opened and not loaded yet.
        """
        lib = libbpf()
        self._function: int | None = None
        if types := lib.bpf_object__btf(handle):
            name = self.program.encode()
            found = lib.btf__find_by_name_kind(types, name, _FUNC)
            if found > 0:
                parameters = lib.btf__type_by_id(types, found)[_TYPE]
                self._function = check(
                    lib.btf__add_func(types, name, _STATIC, parameters), "describe a function"
                )

    def _prepared(self, program: int, options: Any, _cookie: int) -> int:
        """Just before the kernel gets a program."""
        lib, given = libbpf(), options.contents
        given.prog_flags &= ~_HAS_FRAGS
        given.prog_flags |= _HAS_FRAGS * self.frags
        if lib.bpf_program__name(program).decode() != self.program:
            return 0
        count = lib.bpf_program__insn_cnt(program)
        own = ctypes.string_at(lib.bpf_program__insns(program), count * _INSTRUCTION.size)
        before = _handing_on(self.behind.fd)
        shift = len(before) // _INSTRUCTION.size
        lines = _moved(given.line_info, given.line_info_cnt, given.line_info_rec_size, shift)
        functions = _moved(given.func_info, given.func_info_cnt, given.func_info_rec_size, shift)
        if functions is not None:
            if self._function is None:
                return -errno.EINVAL
            functions[1, 1] = self._function
        self._kept = functions, lines  # until the kernel has read them
        given.func_info, given.func_info_cnt = _place(functions)
        given.line_info, given.line_info_cnt = _place(lines)
        return int(lib.bpf_program__set_insns(program, before + own, shift + count))


@cache
def _never_the_last() -> None:
    """Register a handler for good: libbpf before 1.2 frees its table with the last one, and then
    uses it.
    """
    _register("testbed", 0, 0, ProgHandlerOpts(sz=ctypes.sizeof(ProgHandlerOpts)))


def _register(section: str, kind: int, place: int, options: ProgHandlerOpts) -> int:
    handler: int = libbpf().libbpf_register_prog_handler(
        section.encode(), kind, place, ctypes.byref(options)
    )
    return check(handler, f"register section {section}")


def _moved(address: int | None, count: int, size: int, shift: int) -> NDArray[np.uint32] | None:
    """Records about instructions, the first number of each the place, for those that have moved,
    after a copy of the first for what is before them.
    """
    if not address or not count:
        return None
    data = np.frombuffer(ctypes.string_at(address, count * size), np.uint32).reshape(count, -1)
    moved = np.concatenate([data[:1], data])
    moved[1:, 0] += shift
    return moved


def _place(records: NDArray[np.uint32] | None) -> tuple[int | None, int]:
    return (None, 0) if records is None else (records.ctypes.data, len(records))
