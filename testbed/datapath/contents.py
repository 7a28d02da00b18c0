"""What a user's program holds: its variables and maps, typed as in its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from testbed.core.errors import KernelError
from testbed.kernel import Map
from testbed.kernel.btf import Btf
from testbed.kernel.elf import Symbol
from testbed.kernel.object import variables

__all__ = ["MOST_ENTRIES", "Contents"]

MOST_ENTRIES: Final = 1 << 16
"""Of a map, where all that a program holds is kept."""

# Of enum bpf_map_type.
_PROGRAMS, _MAPS, _MAPS_BY_KEY = 3, 12, 13
_INDEXED: Final = frozenset({2, _PROGRAMS, 4, 6, 8, _MAPS, 14, 16, 17, 20})  # by a __u32
_OF_NUMBERS: Final = frozenset({_PROGRAMS, _MAPS, _MAPS_BY_KEY})  # the kernel's, of what is there

Layout = np.dtype[Any]


@dataclass(frozen=True)
class Contents:
    """Of one loaded program.

    :param source: The program's file, for errors.
    :param path: The object.
    :param maps: By name; variables are in ``.bss``, ``.data`` and ``.rodata``.
    """

    source: Path
    path: Path
    maps: Mapping[str, Map]

    @property
    def names(self) -> list[str]:
        """What `read` can be asked for: variables and maps."""
        return [*self._variables, *(name for name in self.maps if not name.startswith("."))]

    def read(self, name: str) -> Any:
        """See `testbed.datapath.programs.Attached.read`."""
        if found := self._variables.get(name):
            data = self.maps[found.section].lookup(0)[found.offset :][: found.size]
            return _value(data, self._layout(name))
        if name not in self.maps or name.startswith("."):
            raise KeyError(f"{self.source} has no {name}: it has {', '.join(self.names)}")
        try:
            return dict(self._entries(name, max(1, 2 * self.maps[name].max_entries)))
        except KernelError as error:
            kind = self.maps[name].kind_name
            raise KernelError(f"{name}, a map of type {kind}, cannot be read: {error}") from None

    def all(self) -> tuple[dict[str, Any], dict[str, str]]:
        """All that can be read, as JSON can hold it, and for the rest why it cannot, by name.

        Structs are objects, keys their text, and bytes hexadecimal. Maps with more than
        `MOST_ENTRIES` are none of it.
        """
        values, reasons = {}, {}
        for name in self.names:
            try:
                if name not in self._variables:
                    self._check_entries(name)
                values[name] = _plain(self.read(name))
            except KernelError as error:
                reasons[name] = str(error)
        return values, reasons

    def _check_entries(self, name: str) -> None:
        found = self.maps[name]
        if not found.key_size or found.max_entries <= MOST_ENTRIES:
            return
        if sum(1 for _ in islice(found.keys(), MOST_ENTRIES + 1)) > MOST_ENTRIES:
            raise KernelError(
                f"{name}, a map of type {found.kind_name}, has more than {MOST_ENTRIES} entries:"
                " too many to be kept"
            )

    @cached_property
    def _variables(self) -> dict[str, Symbol]:
        return {each.name: each for each in variables(self.path) if each.section in self.maps}

    @cached_property
    def _types(self) -> Btf | None:
        try:
            return Btf.of(self.path)
        except KernelError:  # compiled without -g
            return None

    def _layout(self, variable: str) -> Layout | None:
        """None: the object has no type for it, or one that numpy has not."""
        try:
            return self._types.variable(variable) if self._types else None
        except KernelError:
            return None

    def _layouts(self, name: str) -> tuple[Layout | None, Layout | None]:
        """Of a map's keys and values."""
        found = self.maps[name]
        kinds: list[Layout | None] = [None, None]
        for place, part in enumerate(("key", "value")):
            try:
                kinds[place] = self._types.map_type(name, part) if self._types else None
            except KernelError:
                continue
        key, value = kinds
        if key is None and found.kind in _INDEXED:
            key = np.dtype("<u4")
        if value is None and found.kind in _OF_NUMBERS:
            value = np.dtype("<u4")
        return key, value

    def _entries(self, name: str, most: int) -> Iterator[tuple[Any, Any]]:
        """Return at most so many: a map that changes meanwhile may have no end."""
        found = self.maps[name]
        key, value = self._layouts(name)
        if not found.key_size:
            raise KernelError("it has no keys")
        for each in list(islice(found.keys(), most)):
            try:
                data = found.lookup(each)
            except KeyError:  # removed meanwhile, or an index without an entry
                continue
            step = found.stride if found.per_cpu else len(data)
            parts = [
                _value(data[at:][: found.value_size], value) for at in range(0, len(data), step)
            ]
            yield _hashable(_value(each, key)), _summed(parts) if found.per_cpu else parts[0]


def _value(data: bytes, layout: Layout | None) -> Any:
    """An integer as Python's, a struct or an array as numpy's; bytes, if the type is not known."""
    if layout is None or not 0 < layout.itemsize <= len(data):
        return data
    value = np.frombuffer(data, layout, 1)[0]
    return value.item() if isinstance(value, np.generic) and value.dtype.names is None else value


def _summed(parts: list[Any]) -> Any:
    """One value for all CPUs."""
    if all(isinstance(each, int) for each in parts):
        return sum(parts)
    return parts if isinstance(parts[0], bytes) else np.array(parts)


def _hashable(value: Any) -> Any:
    """A key for a dictionary: structs and arrays are tuples, arrays of octets bytes."""
    if isinstance(value, np.ndarray):
        octets = value.dtype.itemsize == 1
        return value.tobytes() if octets else tuple(_hashable(each) for each in value)
    if isinstance(value, np.void):
        return tuple(_hashable(value[name]) for name in value.dtype.names or ())
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, dict):
        return {_text(key): _plain(each) for key, each in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray | list):
        return [_plain(each) for each in value]
    if isinstance(value, np.void):
        return {name: _plain(value[name]) for name in value.dtype.names or ()}
    return value.item() if isinstance(value, np.generic) else value


def _text(key: Any) -> str:
    if isinstance(key, bytes):
        return key.hex()
    return f"({', '.join(map(_text, key))})" if isinstance(key, tuple) else str(key)
