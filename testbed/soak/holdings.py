"""What a process holds: memory, descriptors, mappings, BPF objects. What it still holds when
nothing needs it is a leak.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.kernel.libbpf import check, libbpf
from testbed.soak.failures import Finding

__all__ = ["MOST_GROWTH", "Holdings", "Object", "one_arena", "outlived", "trim"]

Object = tuple[str, int]
"""A BPF object: ``map`` or ``prog``, and the kernel's number of it."""

MOST_GROWTH = 16 << 20
"""Bytes: what is free between blocks in use cannot be given back; some of the largest tensors (4
MiB), leaked, are more.
"""

_M_ARENA_MAX = -8  # malloc.h
_GRACE = 10.0  # seconds for the kernel to free objects: it waits for readers on all CPUs
_PAUSE = 0.05  # seconds between looks


@dataclass(frozen=True)
class Holdings:
    """What a process holds at a moment.

    :param memory: Bytes of its resident set that are its own (``RssAnon``): not of files, nor of
        maps of the kernel.
    :param descriptors: By kind, such as ``socket``, ``anon_inode:bpf-map`` or a file's path;
        mappings of such a thing count besides, as ``mapping of`` it.
    :param objects: BPF objects that it has a descriptor of.
    """

    memory: int
    descriptors: Counter[str]
    objects: frozenset[Object]

    @classmethod
    def of(cls, pid: int) -> Holdings:
        """What a process holds that is there, and is quiet."""
        process = Path("/proc", str(pid))
        descriptors, objects = Counter[str](), set[Object]()
        for entry in (process / "fd").iterdir():
            with suppress(
                FileNotFoundError
            ):  # the one that this directory is read by, where it is our own
                descriptors[_kind(str(entry.readlink()))] += 1
                objects |= _objects((process / "fdinfo" / entry.name).read_text(encoding="utf-8"))
        for line in (process / "maps").read_text(encoding="utf-8").splitlines():
            if "anon_inode:" in line:
                descriptors[f"mapping of {_kind(line.split(maxsplit=5)[5])}"] += 1
        return cls(
            _anonymous((process / "status").read_text(encoding="utf-8")),
            descriptors,
            frozenset(objects),
        )

    def growth(self, who: str, before: Holdings) -> int:
        """Bytes by which a process has grown since its steady state.

        :param who: Its name.
        :raises Finding: It holds descriptors or mappings that it did not, or more memory than what
            may remain of arrays.
        """
        if more := self.descriptors - before.descriptors:
            raise Finding(
                f"{who} goes on holding"
                f" {', '.join(f'{count} {kind}' for kind, count in sorted(more.items()))}"
            )
        grown = self.memory - before.memory
        if grown > MOST_GROWTH:
            raise Finding(
                f"{who} has grown by {grown / 2**20:.1f} MiB since earlier scenarios, more than"
                f" {MOST_GROWTH >> 20}"
            )
        return max(0, grown)


def outlived(objects: Iterable[Object]) -> list[Object]:
    """BPF objects that no process has a descriptor of, and that are still in the kernel after a
    grace period.

    What keeps one is an entry in another map, an attachment or a mapping.
    """
    left, deadline = sorted(objects), time.monotonic() + _GRACE
    while (left := [found for found in left if _exists(*found)]) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return left


def one_arena() -> None:
    """Make all threads of this process allocate from one arena: `trim` does not return free memory
    at the end of others.
    """
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return free memory of this process to the kernel."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _kind(target: str) -> str:
    """What kind of thing a descriptor stands for, by the link in ``/proc``: those of one kind
    differ in number only.
    """
    return re.sub(r":\[\d+\]$", "", target)


def _objects(information: str) -> set[Object]:
    """The BPF object that a descriptor is of, if it is of one."""
    return {
        (kind, int(number))
        for kind, number in re.findall(r"^(map|prog)_id:\s*(\d+)$", information, re.MULTILINE)
    }


def _exists(kind: str, number: int) -> bool:
    found: int = getattr(libbpf(), f"bpf_{kind}_get_fd_by_id")(number)
    if found == -errno.ENOENT:
        return False
    os.close(check(found, f"open {kind} {number}"))
    return True


def _anonymous(status: str) -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    assert found, "since Linux 4.5"
    return int(found[1]) * 1024
