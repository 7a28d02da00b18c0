"""Structs and enums as a compiled object describes them in its section ``.BTF``.

The compiler writes BTF for the kernel (Documentation/bpf/btf.rst has the format); here it gives the
layout of memory that C and Python share, so that no layout is written twice. Only types of data are
read; functions and sections are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from testbed.core.errors import KernelError
from testbed.kernel.elf import Elf

__all__ = ["Btf"]

_MAGIC: Final = 0xEB9F
_HEADER: Final = struct.Struct("<HBBIIIII")  # struct btf_header
_TYPE: Final = struct.Struct("<III")  # struct btf_type: name, info, size or type

# BTF_KIND_*, of include/uapi/linux/btf.h.
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT = range(
    1, 12
)
_FUNC, _FUNC_PROTO, _VAR, _DATASEC, _FLOAT, _DECL_TAG, _TYPE_TAG, _ENUM64 = range(12, 20)
_QUALIFIERS: Final = frozenset({_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG})
#: Bytes that follow a type of each kind: once, and for each of its members.
_BEHIND: Final = {
    _INT: (4, 0),
    _ARRAY: (12, 0),
    _STRUCT: (0, 12),
    _UNION: (0, 12),
    _ENUM: (0, 8),
    _FUNC_PROTO: (0, 8),
    _VAR: (4, 0),
    _DATASEC: (0, 12),
    _DECL_TAG: (4, 0),
    _ENUM64: (0, 12),
}
_SIGNED, _BOOL = 1, 4  # of an integer's encoding
_BIG_ENDIAN: Final = frozenset({"__be16", "__be32", "__be64"})


@dataclass(frozen=True)
class _Type:
    """``struct btf_type``.

    :param count: Number of members, if the kind has any.
    :param flag: ``kind_flag``: a struct has bit fields; an enum is signed.
    :param size: Bytes; for a pointer, typedef or qualifier the number of another type.
    :param more: The data that follow it.
    """

    name: str
    kind: int
    count: int
    flag: bool
    size: int
    more: bytes


class Btf:
    """Types of one object, by name.

    :param data: Bytes of the section.
    :param name: The object's name in errors.
    :raises KernelError: These bytes are not BTF, or of an unknown version.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        try:
            self._types = list(self._read(data))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise KernelError(f"{name}: its BTF is damaged: {error}") from error
        self._dtypes: dict[int, np.dtype[Any]] = {}

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read the BTF of a compiled object (ELF, 64 bits, little endian).

        :raises KernelError: It is not such a file, or has no BTF.
        """
        try:
            return cls(Elf(path.read_bytes()).section(".BTF"), path.name)
        except ValueError as error:
            raise KernelError(f"{path.name} is {error}") from None
        except KeyError:
            raise KernelError(
                f"{path.name} has no section .BTF: it was compiled without -g"
            ) from None

    def dtype(self, name: str) -> np.dtype[Any]:
        """The layout of ``struct <name>``: all members at their offsets, and a size that includes
        padding.

        Enumerations and pointers become unsigned integers of their size, nested structs and arrays
        stay nested, and ``__be16``, ``__be32`` and ``__be64`` are big endian. Members of an unnamed
        union are members of the struct, at the same offset.

        :raises KernelError: The object has no such struct, or one that numpy cannot describe, such
            as one with bit fields.
        """
        return self._dtype(self._find(name, _STRUCT, "struct"))

    def enum(self, name: str) -> type[IntEnum]:
        """The members of ``enum <name>``, under their names in C.

        LLVM 14's BTF does not mark signed enumerations, so numbers are unsigned unless BTF says
        otherwise, and shared enumerations have no negative members.

        :raises KernelError: The object has no such enumeration.
        """
        found = self._types[self._find(name, _ENUM, "enum")]
        pairs = struct.iter_unpack("<Ii" if found.flag else "<II", found.more)
        make: Any = IntEnum
        enumeration: type[IntEnum] = make(name, [(self._string(at), value) for at, value in pairs])
        return enumeration

    def constant(self, name: str) -> int:
        """An enumerator's number, in whichever enumeration it is: C has one name space for all.

        :raises KernelError: The object has none of that name.
        """
        try:
            return self._constants[name]
        except KeyError:
            raise KernelError(f"{self._name}: BTF has no enumerator {name!r}") from None

    def offset(self, name: str, path: str) -> int:
        """Where a member lies in ``struct <name>``, in bytes.

        :param path: Names of nested members with dots between them, as in C; members of unnamed
            structs and unions count as the outer one's.
        :raises KernelError: There is no such struct or member.
        """
        number, place = self._find(name, _STRUCT, "struct"), 0
        for member in path.split("."):
            found = self._member(number, member)
            if found is None:
                raise KernelError(f"{self._name}: BTF has no member {path} of struct {name}")
            number, place = found[0], place + found[1]
        return place

    def _member(self, number: int, wanted: str) -> tuple[int, int] | None:
        """The type of a member and its offset in bytes, also in unnamed members."""
        found = self._types[number]
        while found.kind in _QUALIFIERS:
            found = self._types[found.size]
        if found.kind not in (_STRUCT, _UNION):
            return None
        for name, kind, offset in struct.iter_unpack("<III", found.more):
            place = (offset & 0xFFFFFF if found.flag else offset) // 8
            if self._string(name) == wanted:
                return kind, place
            inner = None if self._string(name) else self._member(kind, wanted)
            if inner is not None:
                return inner[0], place + inner[1]
        return None

    def variable(self, name: str) -> np.dtype[Any]:
        """The layout of a global variable.

        :raises KernelError: The object has no such variable, or one that numpy cannot describe.
        """
        return self._dtype(self._types[self._variable(name)].size)

    def map_type(self, name: str, part: str) -> np.dtype[Any] | None:
        """The layout of a map's keys (``key``) or values (``value``), where its definition says it
        (``__type``).

        :raises KernelError: The object has no such map, or numpy no such type.
        """
        found = self._member(self._types[self._variable(name)].size, part)
        if found is None:
            return None
        pointer = self._types[found[0]]
        return self._dtype(pointer.size) if pointer.size else None

    def _variable(self, name: str) -> int:
        if (_VAR, name) not in self._numbers:
            raise KernelError(f"{self._name}: BTF has no variable {name!r}")
        return self._numbers[_VAR, name]

    def names(self, kind: str) -> list[str]:
        """Names of all types of a kind, ``struct`` or ``enum``, in the object's order."""
        number = {"struct": _STRUCT, "enum": _ENUM}[kind]
        return [found.name for found in self._types if found.kind == number and found.name]

    def _read(self, data: bytes) -> Iterator[_Type]:
        magic, version, _, header, type_at, type_size, string_at, string_size = _HEADER.unpack_from(
            data
        )
        if (magic, version) != (_MAGIC, 1):
            raise KernelError(
                f"{self._name}: no BTF of version 1: it begins with {data[:3].hex(' ')}"
            )
        self._strings = data[header + string_at : header + string_at + string_size]
        place, end = header + type_at, header + type_at + type_size
        yield _Type("void", 0, 0, False, 0, b"")
        while place < end:
            name, info, size = _TYPE.unpack_from(data, place)
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            if not _INT <= kind <= _ENUM64:
                raise KernelError(f"{self._name}: BTF type of kind {kind}, which is not known here")
            once, each = _BEHIND.get(kind, (0, 0))
            place += _TYPE.size
            more = data[place : place + once + each * count]
            place += len(more)
            yield _Type(self._string(name), kind, count, bool(info >> 31), size, more)

    def _string(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode()

    @cached_property
    def _numbers(self) -> dict[tuple[int, str], int]:
        return {(found.kind, found.name): number for number, found in enumerate(self._types)}

    @cached_property
    def _constants(self) -> dict[str, int]:
        return {
            name: int(member)
            for found in self.names("enum")
            for name, member in self.enum(found).__members__.items()
        }

    def _find(self, name: str, kind: int, word: str) -> int:
        try:
            return self._numbers[kind, name]
        except KeyError:
            known = ", ".join(sorted(self.names(word))) or "none"
            raise KernelError(f"{self._name}: BTF has no {word} {name!r}: it has {known}") from None

    def _dtype(self, number: int) -> np.dtype[Any]:
        if number not in self._dtypes:
            self._dtypes[number] = self._make(self._types[number])
        return self._dtypes[number]

    def _make(self, found: _Type) -> np.dtype[Any]:
        kind = found.kind
        if kind == _TYPEDEF and found.name in _BIG_ENDIAN:
            return self._dtype(found.size).newbyteorder(">")
        if kind in _QUALIFIERS:
            return self._dtype(found.size)
        if kind == _INT:
            return self._integer(found)
        if kind == _PTR:
            return np.dtype("<u8")
        if kind in (_ENUM, _ENUM64):
            return np.dtype(f"<{'i' if found.flag else 'u'}{found.size}")
        if kind == _FLOAT:
            return np.dtype(f"<f{found.size}")
        if kind == _ARRAY:
            element, _, length = struct.unpack("<III", found.more)
            inner = self._dtype(element)
            return np.dtype((inner.base, (length, *inner.shape)))
        if kind == _STRUCT:
            return self._struct(found)
        raise KernelError(
            f"{self._name}: a member of {found.name or 'an unnamed type'!r}, BTF kind {kind}, has"
            " no dtype"
        )

    def _integer(self, found: _Type) -> np.dtype[Any]:
        encoding = int.from_bytes(found.more, "little")
        if encoding & 0xFF != found.size * 8 or encoding >> 16 & 0xFF:
            raise KernelError(
                f"{self._name}: {found.name!r} is a bit field: shared structs have none"
            )
        if found.size not in (1, 2, 4, 8):
            raise KernelError(f"{self._name}: {found.name!r} has {found.size} bytes, and no dtype")
        if encoding >> 24 & _BOOL:
            return np.dtype(np.bool_)
        return np.dtype(f"<{'i' if encoding >> 24 & _SIGNED else 'u'}{found.size}")

    def _struct(self, found: _Type) -> np.dtype[Any]:
        members = list(self._members(found))
        return np.dtype(
            {
                "names": [name for name, _, _ in members],
                "formats": [layout for _, layout, _ in members],
                "offsets": [offset for _, _, offset in members],
                "itemsize": found.size,
            }
        )

    def _members(self, found: _Type) -> Iterator[tuple[str, np.dtype[Any], int]]:
        """Name, layout and offset of each member, including those of unnamed unions."""
        for name, kind, offset in struct.iter_unpack("<III", found.more):
            member = self._string(name)
            # With the flag, the upper byte is the width of a bit field, and 0 for other members.
            if (found.flag and offset >> 24) or offset % 8:
                raise KernelError(
                    f"{self._name}: struct {found.name}: {member!r} is a bit field: shared structs"
                    " have none"
                )
            place = (offset & 0xFFFFFF if found.flag else offset) // 8
            if member:
                yield member, self._dtype(kind), place
            elif self._types[kind].kind == _UNION:
                for inner, layout, _ in self._members(self._types[kind]):
                    yield inner, layout, place
            else:
                raise KernelError(
                    f"{self._name}: struct {found.name} has a member without a name: shared structs"
                    " have none but unions"
                )
