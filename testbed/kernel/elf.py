"""Sections and symbols of a compiled object (ELF, 64 bits, little endian)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Elf", "Symbol"]

_HEADER: Final = struct.Struct("<16s2HI3QI6H")
_SECTION: Final = struct.Struct("<2I4Q2I2Q")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMTAB: Final = 2  # sh_type
_OBJECT: Final = 1  # type of a symbol: a variable


@dataclass(frozen=True)
class Symbol:
    """A variable.

    :param section: Name of the section that it is in.
    :param offset: Its place there, bytes.
    """

    name: str
    section: str
    offset: int
    size: int


class Elf:
    """An object's bytes.

    :raises ValueError: They are not such an object.
    """

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF object")
        self._data = data
        fields = _HEADER.unpack_from(data)
        table, size, count, names = fields[6], fields[11], fields[12], fields[13]
        self._headers = [_SECTION.unpack_from(data, table + size * n) for n in range(count)]
        strings = self._headers[names][4]
        self._names = [self._string(strings + header[0]) for header in self._headers]

    def section(self, name: str) -> bytes:
        """The bytes of a section.

        :raises KeyError: There is none with that name.
        """
        for found, header in zip(self._names, self._headers, strict=True):
            if found == name:
                return self._data[header[4] : header[4] + header[5]]
        raise KeyError(name)

    def variables(self) -> Iterator[Symbol]:
        """All variables."""
        for header in self._headers:
            if header[1] != _SYMTAB:
                continue
            strings = self._headers[header[6]][4]
            for at in range(header[4], header[4] + header[5], _SYMBOL.size):
                name, info, _, index, offset, size = _SYMBOL.unpack_from(self._data, at)
                if info & 0xF == _OBJECT and index < len(self._names):
                    yield Symbol(self._string(strings + name), self._names[index], offset, size)

    def _string(self, at: int) -> str:
        return self._data[at : self._data.index(b"\0", at)].decode(errors="replace")
