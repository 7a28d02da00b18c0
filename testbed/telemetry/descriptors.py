"""BPF programs and CPU maps of a fabric's nodes, by the descriptors that their processes hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Program", "cpumap_owners", "programs"]


class Program(NamedTuple):
    """A loaded program's statistics, while the kernel keeps them.

    :param number: The kernel's id.
    :param seconds: Of all its runs.
    """

    node: str
    number: int
    tag: str
    runs: int
    seconds: float


def _held(nodes: Mapping[int, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """What each process in a node's network namespace holds that belongs to BPF: the node, and the
    fields of ``/proc/<pid>/fdinfo/<fd>``.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            node = nodes.get((process / "ns" / "net").stat().st_ino)
            if node is None:
                continue
            for entry in os.scandir(process / "fd"):
                if os.readlink(entry.path).startswith("anon_inode:bpf"):
                    text = (process / "fdinfo" / entry.name).read_text(encoding="utf-8")
                    yield (
                        node,
                        {
                            key: value.strip()
                            for key, _, value in (line.partition(":") for line in text.splitlines())
                        },
                    )


def cpumap_owners(nodes: Mapping[int, str]) -> dict[int, str]:
    """Nodes by the ids of the maps that their processes hold.

    :param nodes: Names by inode of the network namespace.
    """
    return {int(fields["map_id"]): node for node, fields in _held(nodes) if "map_id" in fields}


def programs(nodes: Mapping[int, str]) -> dict[int, Program]:
    """The programs that the nodes' processes hold, by id.

    :param nodes: Names by inode of the network namespace.
    """
    found = {}
    for node, fields in _held(nodes):
        if "run_cnt" in fields:
            number = int(fields["prog_id"])
            runs, seconds = int(fields["run_cnt"]), int(fields["run_time_ns"]) / 1e9
            found[number] = Program(node, number, fields["prog_tag"], runs, seconds)
    return found
