"""Names of code addresses: of the kernel and its BPF programs, and of the files that processes
have mapped.
"""

from __future__ import annotations

import mmap
import re
import struct
from bisect import bisect_right
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from testbed.telemetry.stacks import UNKNOWN

__all__ = ["KernelSymbols", "ProcessSymbols"]

_PROGRAM: Final = re.compile(rb"^([0-9a-f]+) t (bpf_prog_[0-9a-f]{16}_?\S*)", re.MULTILINE)
_SYMBOL: Final = re.compile(rb"^([0-9a-f]+) [tTwW] (\S+)$", re.MULTILINE)
_LONGEST_PROGRAM: Final = 1 << 18  # bytes of machine code

_SECTION: Final = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("address", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("align", "<u8"),
        ("entry", "<u8"),
    ]
)
_SEGMENT: Final = np.dtype(
    [
        ("type", "<u4"),
        ("flags", "<u4"),
        ("offset", "<u8"),
        ("address", "<u8"),
        ("physical", "<u8"),
        ("file_size", "<u8"),
        ("size", "<u8"),
        ("align", "<u8"),
    ]
)
_ENTRY: Final = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
_PT_LOAD, _SHT_SYMTAB, _SHT_DYNSYM, _STT_FUNC = 1, 2, 11, 2  # elf(5)


class KernelSymbols:
    """``/proc/kallsyms``: the kernel's functions, and BPF programs as they come and go."""

    def __init__(self, path: Path = Path("/proc/kallsyms")) -> None:
        self._path = path
        found = sorted(
            (int(address, 16), name.decode())
            for address, name in _SYMBOL.findall(path.read_bytes())
        )
        self._addresses = [address for address, _ in found]
        self._names = [name for _, name in found]
        self._programs: tuple[list[int], list[str]] = ([], [])
        self._known: dict[int, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look up BPF programs once more: each has a name only while it is loaded."""
        found = sorted(
            (int(address, 16), name.decode())
            for address, name in _PROGRAM.findall(self._path.read_bytes())
        )
        programs = [address for address, _ in found], [name for _, name in found]
        if programs != self._programs:
            self._programs = programs
            self._known.clear()

    def name(self, address: int) -> str:
        """The function at an address; ``?`` if there is none.

        BPF programs are named as in the kernel's own traces: ``bpf_prog_<tag>_<name>``.
        """
        if address not in self._known:
            self._known[address] = self._find(address)
        return self._known[address]

    def program(self, tag: str) -> str:
        """The name of a loaded BPF program; its tag if it has none."""
        start = f"bpf_prog_{tag}_"
        names = (name for name in self._programs[1] if name.startswith(start))
        return next(names, start + tag).removeprefix(start)

    def _find(self, address: int) -> str:
        addresses, names = self._programs
        place = bisect_right(addresses, address) - 1
        if place >= 0 and address - addresses[place] < _LONGEST_PROGRAM:
            return names[place]
        place = bisect_right(self._addresses, address) - 1
        return self._names[place] if place >= 0 else UNKNOWN


class _Object:
    """The functions of an ELF file, by its full symbol table, or else by what it exports."""

    def __init__(self, path: str) -> None:
        self._starts: NDArray[np.uint64] = np.empty(0, np.uint64)
        # Removed, or no ELF file: its code has the file's name only.
        with suppress(OSError, ValueError, IndexError, struct.error):
            self._read(path)

    def _read(self, path: str) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if self._data[:6] != b"\x7fELF\x02\x01":
            return
        segments, sections = struct.unpack_from("<QQ", self._data, 32)
        _, segment_count, _, section_count = struct.unpack_from("<4H", self._data, 54)
        self._segments = self._table(segments, segment_count, _SEGMENT)
        tables = self._table(sections, section_count, _SECTION)
        for kind in (_SHT_SYMTAB, _SHT_DYNSYM):
            for table in tables[tables["type"] == kind]:
                entries = self._table(table["offset"], table["size"] // _ENTRY.itemsize, _ENTRY)
                entries = entries[((entries["info"] & 15) == _STT_FUNC) & (entries["section"] != 0)]
                if len(entries):
                    self._entries = entries[np.argsort(entries["value"], kind="stable")]
                    self._starts = self._entries["value"]
                    self._strings = int(tables[table["link"]]["offset"])
                    return

    def _table(self, offset: int, count: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
        return np.frombuffer(self._data, kind, int(count), int(offset))

    def name(self, offset: int) -> str:
        """The function at an offset in the file; empty if it is not known."""
        if not len(self._starts):
            return ""
        loaded = self._segments[self._segments["type"] == _PT_LOAD]
        for segment in loaded:
            inside = offset - int(segment["offset"])
            if 0 <= inside < int(segment["file_size"]):
                place = int(segment["address"]) + inside
                break
        else:
            return ""
        found = int(np.searchsorted(self._starts, place, "right")) - 1
        if found < 0 or place >= int(self._starts[found]) + max(
            int(self._entries[found]["size"]), 1
        ):
            return ""
        start = self._strings + int(self._entries[found]["name"])
        return self._data[start : start + 256].split(b"\0", 1)[0].decode(errors="replace")


_object = cache(_Object)


class ProcessSymbols:
    """Code of one process by ``/proc/<pid>/maps``, as far as it could be read when it was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, str] = {}
        self._map()

    def _map(self) -> None:
        self._starts: list[int] = []
        self._mappings: list[tuple[int, int, str]] = []
        try:
            lines = Path(f"/proc/{self._pid}/maps").read_text(encoding="utf-8").splitlines()
        except OSError:
            return  # it has ended
        for line in lines:
            span, mode, offset, _, _, *path = line.split(maxsplit=5)
            if "x" in mode:
                start, end = (int(each, 16) for each in span.split("-"))
                self._starts.append(start)
                self._mappings.append((end, int(offset, 16), path[0] if path else "[anonymous]"))

    def name(self, address: int) -> str:
        """The function at an address, as ``file!function``, or ``file!`` where only the file is
        known; ``?`` if nothing is mapped there.
        """
        if address not in self._known:
            found = self._find(address)
            if found == UNKNOWN:  # a library that was loaded since
                self._map()
                found = self._find(address)
            self._known[address] = found
        return self._known[address]

    def _find(self, address: int) -> str:
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._mappings[place][0]:
            return UNKNOWN
        _, offset, path = self._mappings[place]
        function = (
            _object(path).name(address - self._starts[place] + offset)
            if path.startswith("/")
            else ""
        )
        return f"{path.rpartition('/')[2]}!{function}"
