"""Thrift's compact protocol, as far as the metadata of Parquet files need it. Pure.

Structures become dictionaries by the numbers of their fields. pyarrow shows the same metadata, but
ends the process where they contradict each other.
"""

from typing import Any, Final

__all__ = ["BrokenThrift", "read_struct"]

DEEPEST: Final = 16  # structures and lists in each other
MOST_VALUES: Final = 1 << 19

Struct = dict[int, Any]


class BrokenThrift(ValueError):
    """Data are no structure, or a torn one."""


def read_struct(data: bytes) -> tuple[Struct, int]:
    """Return the structure at the beginning of some data, and its length in bytes.

    Whole numbers are `int`, texts `bytes`, truth values and numbers of floating point None.

    :raises BrokenThrift: There is none, it has too many values, or is nested too deeply.
    """
    reader = _Reader(data)
    return reader.struct(0), reader.place


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.place, self._left = data, 0, MOST_VALUES

    def struct(self, depth: int) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            found[number] = self._value(head & 15, depth, field=True)
        return found

    def _value(self, kind: int, depth: int, field: bool) -> Any:
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise BrokenThrift("metadata are nested too deeply, or too many")
        match kind:
            case 1 | 2:  # true, false: of a field in its head, in a list a byte
                if not field:
                    self._byte()
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7:
                self._take(8)
            case 8:
                return self._take(self._varint())
            case 9 | 10:
                head = self._byte()
                count = self._varint() if head >> 4 == 15 else head >> 4
                return [self._value(head & 15, depth + 1, field=False) for _ in range(count)]
            case 12:
                return self.struct(depth + 1)
            case _:
                raise BrokenThrift("metadata have a type that Parquet does not have")
        return None

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        self.place += size
        if self.place > len(self._data):
            raise BrokenThrift("metadata end early")
        return self._data[self.place - size : self.place]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise BrokenThrift("metadata have a number that is too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
