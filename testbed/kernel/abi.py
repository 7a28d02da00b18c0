"""The contract between programs, native code and Python: structs and enums of
``bpf/shared/*_abi.h``.

``bpf/abi.bpf.c`` includes all of these headers and keeps their types. It is compiled on first use,
which needs clang but no privileges, and its BTF is read; it is never loaded.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.btf import Btf
from testbed.kernel.compile import compile_bpf

__all__ = ["Struct", "constant", "counter_names", "dtype", "enum", "lifted"]


@cache
def _contract() -> Btf:
    return Btf.of(compile_bpf("abi"))


@cache
def dtype(name: str) -> np.dtype[Any]:
    """The layout of ``struct <name>``; see `Btf.dtype`.

    :raises KernelError: No header has it, or clang is not installed.
    """
    return _contract().dtype(name)


def lifted(layout: np.dtype[Any]) -> np.dtype[Any]:
    """The same layout with nested structs flattened: their members appear under their own names."""
    places: dict[str, tuple[np.dtype[Any], int]] = {}
    for name, (kind, offset, *_) in (layout.fields or {}).items():
        if kind.fields is None:
            places[name] = kind, offset
        else:
            places |= {
                inner: (own, offset + place) for inner, (own, place, *_) in kind.fields.items()
            }
    formats, offsets = zip(*places.values(), strict=True)
    return np.dtype(
        {"names": list(places), "formats": formats, "offsets": offsets, "itemsize": layout.itemsize}
    )


@cache
def enum(name: str) -> type[IntEnum]:
    """``enum <name>``; see `Btf.enum`.

    :raises KernelError: No header has it, or clang is not installed.
    """
    return _contract().enum(name)


@cache
def constant(name: str) -> int:
    """The number of an enumerator; see `Btf.constant`.

    :raises KernelError: No header has it, or clang is not installed.
    """
    return _contract().constant(name)


def counter_names(name: str, prefix: str) -> tuple[str, ...]:
    """Names of the elements of a map ``counters``: those of ``enum drop_reason``, then those of
    ``enum <name>``.

    In lower case and without prefix. The last member of each enum is only the number of its
    members.
    """
    drops, own = list(enum("drop_reason").__members__), list(enum(name).__members__)
    return tuple(one.removeprefix("DROP_").lower() for one in drops[:-1]) + tuple(
        one.removeprefix(prefix).lower() for one in own[:-1]
    )


class Struct:
    """One struct in memory with its members as attributes: Python numbers, and views of nested
    structs and arrays.

    :param kind: The name of a struct, for new memory filled with zeros; or existing memory, a
        structured array of one element.
    :param members: Initial values.
    """

    __slots__ = ("_memory",)

    def __init__(self, kind: str | NDArray[Any], /, **members: Any) -> None:
        memory = np.zeros(1, dtype(kind)) if isinstance(kind, str) else kind
        object.__setattr__(self, "_memory", memory.reshape(1))
        for name, value in members.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._memory[name][0]
        except ValueError:
            raise AttributeError(
                f"no member {name!r}: {', '.join(self._memory.dtype.names)}"
            ) from None
        return value if value.dtype.names or value.ndim else value.item()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._memory.dtype.names:
            raise AttributeError(f"no member {name!r}: {', '.join(self._memory.dtype.names)}")
        self._memory[name][0] = value

    def __bytes__(self) -> bytes:
        return bytes(self._memory.tobytes())

    @property
    def value(self) -> np.void:
        """The whole struct, for assignment to a member of another."""
        found: np.void = self._memory[0]
        return found

    @property
    def address(self) -> int:
        """Its address, for C; the memory lives as long as this object or another view of it."""
        return int(self._memory.ctypes.data)

    @classmethod
    def each(cls, memory: NDArray[Any]) -> list[Struct]:
        """One for each element of an array, in its memory."""
        flat = memory.reshape(-1)
        return [cls(flat[index : index + 1]) for index in range(flat.size)]
