"""Samples and counts of a stretch of time, and the profile that they make."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.abi import constant
from testbed.telemetry.classify import Classes, load_classes
from testbed.telemetry.descriptors import Program, cpumap_owners, programs
from testbed.telemetry.profile import MACHINE, Count, Profile, Samples
from testbed.telemetry.sampler import Sampler, drop_reasons
from testbed.telemetry.stacks import Stack, fold, merged
from testbed.telemetry.symbols import KernelSymbols, ProcessSymbols

__all__ = ["OUTSIDE", "Recording", "Windows", "owners"]

Windows = Mapping[str, Sequence[Sequence[float]]]
"""Starts and ends of collectives by node, in seconds of CLOCK_MONOTONIC; ``*``: all other nodes."""


_VECTORS: Final = (  # enum in include/linux/interrupt.h, as in /proc/softirqs
    "hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu",
)  # fmt: skip
OUTSIDE: Final = "outside"
"""The class of user space outside the fabric, whose functions are not looked up."""

_STACK: Final = ("pid", "kernel", "kernel_frames", "user", "user_frames")
_COLUMNS: Final = ("time", "cpu", "poll", "tid", "task_netns", "device_netns")
_INBOUND: Final = frozenset({"read", "readv", "recvfrom", "recvmsg", "recvmmsg", "pread64"})
_OUTBOUND: Final = frozenset({"write", "writev", "sendto", "sendmsg", "pwrite64"})


def owners(
    samples: Mapping[str, NDArray[Any]] | NDArray[Any],
    polls: NDArray[Any],
    softirq: Sequence[bool],
    nodes: Mapping[int, str],
) -> list[str]:
    """The node that each sample's work was done for.

    Softirq work belongs to the device that was polled, or else to that of the skb; all other work
    belongs to the task.

    :param samples: Members of ``telemetry_sample``, one element of each per sample.
    :param polls: Array of ``telemetry_poll``.
    :param softirq: Whether each sample was in softirq.
    :param nodes: Names by inode of the network namespace.
    """
    polled = {
        (cpu, poll): netns
        for cpu, poll, netns in zip(
            *(polls[key].tolist() for key in ("cpu", "poll", "netns")), strict=True
        )
    }
    keys = ("cpu", "poll", "task_netns", "device_netns")
    return [
        nodes.get(polled.get((cpu, poll)) or device if within else task, MACHINE)
        for cpu, poll, task, device, within in zip(
            *(samples[key].tolist() for key in keys), softirq, strict=True
        )
    ]


class Recording:
    """What the sampler delivers, until it is taken.

    :param nodes: Names by inode of the network namespace.
    """

    def __init__(self, sampler: Sampler, nodes: Mapping[int, str], rate: int) -> None:
        self._sampler, self._nodes, self._rate = sampler, nodes, rate
        self._classes: Classes = load_classes()
        self._kernel = KernelSymbols()
        self._processes: dict[int, ProcessSymbols] = {}
        self._threads: dict[int, str | None] = {}  # nodes of the kernel's threads of CPU maps
        self._syscalls = _syscall_names()
        self._reasons = drop_reasons()
        self._stacks: dict[
            tuple[int, bytes, bytes], int
        ] = {}  # process, kernel's and user's frames
        self._batches: list[tuple[dict[str, NDArray[Any]], NDArray[Any]]] = []
        self.start()

    def start(self) -> None:
        """Forget everything up to now."""
        self._programs = programs(self._nodes)  # looks at all processes, so it is first
        self._sampler.read()
        self._batches.clear()
        self._stacks.clear()
        self._lost = self._sampler.lost
        self._counts = dict(self._sampler.counts())
        self._began = time.monotonic()

    def drain(self) -> None:
        """Fetch samples, and what is only known while their processes live."""
        samples, polls = self._sampler.read()
        ours = np.isin(samples["task_netns"], list(self._nodes))
        for pid in np.unique(samples["pid"][ours & (samples["user_frames"] > 0)]).tolist():
            if pid not in self._processes:
                self._processes[pid] = ProcessSymbols(pid)
        # The kernel's threads have no user space; each is the only one of its process.
        alone = ~ours & (samples["user_frames"] == 0) & (samples["pid"] == samples["tid"])
        for tid in np.unique(samples["tid"][alone]).tolist():
            if tid not in self._threads:
                self._threads[tid] = self._cpumap_owner(tid)
        # Stacks are long and often the same, so each is kept once.
        numbers = [
            self._stacks.setdefault(
                (pid, kernel[:kernel_frames].tobytes(), user[:user_frames].tobytes()),
                len(self._stacks),
            )
            for pid, kernel, kernel_frames, user, user_frames in zip(
                *(
                    samples[key].tolist() if samples[key].ndim == 1 else samples[key]
                    for key in _STACK
                ),
                strict=True,
            )
        ]
        columns = {key: samples[key].copy() for key in _COLUMNS}
        self._batches.append(({**columns, "stack": np.array(numbers, np.int64)}, polls))

    def _cpumap_owner(self, tid: int) -> str | None:
        with suppress(OSError):
            name = (
                Path(f"/proc/{tid}/comm").read_text(encoding="utf-8").strip()
            )  # cpumap/<cpu>/map:<id>
            if name.startswith("cpumap/"):
                return cpumap_owners(self._nodes).get(int(name.rpartition(":")[2]))
        return None

    def take(self, windows: Windows | None = None) -> tuple[Profile, list[Stack]]:
        """The profile and the stacks since `start` or the last call.

        :param windows: When the nodes were in collectives; None: always.
        """
        self.drain()
        ended = time.monotonic()
        self._kernel.refresh()
        tally: Counter[tuple[str, bool, str]] = Counter()
        inside: Counter[tuple[str, bool, str]] = Counter()
        stacks: Counter[tuple[str, bool, str, int]] = Counter()
        stacks_inside: Counter[tuple[str, bool, str, int]] = Counter()
        named = [self._names(*each) for each in self._stacks]
        classes = [self._classes.of(*each) for each in named]
        in_softirq = [self._classes.in_softirq(kernel) for kernel, _ in named]
        samples = {
            key: np.concatenate([columns[key] for columns, _ in self._batches])
            for key in self._batches[0][0]
        }
        polls = np.concatenate([each for _, each in self._batches])
        numbers = samples["stack"].tolist()
        nodes = owners(samples, polls, [in_softirq[number] for number in numbers], self._nodes)
        moments = (samples["time"] * 1e-9).tolist()
        for node, number, tid, moment in zip(
            nodes, numbers, samples["tid"].tolist(), moments, strict=True
        ):
            softirq, name = in_softirq[number], classes[number]
            if node == MACHINE and not named[number][0]:
                name = OUTSIDE
            if not tid and not softirq:
                continue  # idle is what remains of the time
            if node == MACHINE and not softirq:
                node = self._threads.get(tid) or node
            tally[node, softirq, name] += 1
            stacks[node, softirq, name, number] += 1
            if _within(windows, node, moment):
                inside[node, softirq, name] += 1
                stacks_inside[node, softirq, name, number] += 1
        seconds = ended - self._began
        profile = Profile(
            seconds,
            _length(windows, seconds),
            os.cpu_count() or 1,
            self._rate,
            self._sampler.lost - self._lost,
            tuple(Samples(*key, count, inside[key]) for key, count in sorted(tally.items())),
            tuple(self._counted()),
        )
        folded = [
            fold(self._classes.softirq_part(kernel), () if softirq else user)
            for (kernel, user), softirq in zip(named, in_softirq, strict=True)
        ]
        self.start()
        return profile, merged(
            Stack(
                node,
                softirq,
                name,
                folded[number],
                count,
                stacks_inside[node, softirq, name, number],
            )
            for (node, softirq, name, number), count in stacks.items()
        )

    def _names(
        self, pid: int, kernel: bytes, user: bytes
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        process = self._processes.get(pid)
        return (
            tuple(map(self._kernel.name, np.frombuffer(kernel, np.uint64).tolist())),
            tuple(map(process.name, np.frombuffer(user, np.uint64).tolist())) if process else (),
        )

    def _counted(self) -> list[Count]:
        found: Counter[tuple[str, str, str]] = Counter()
        totals: Counter[tuple[str, str, str]] = Counter()

        def add(node: str, kind: str, detail: str, count: int, total: float) -> None:
            found[node, kind, detail] += count
            totals[node, kind, detail] += total  # type: ignore[assignment]

        for (netns, kind, number), (count, total) in self._sampler.counts().items():
            before = self._counts.get((netns, kind, number), (0, 0))
            count, total = count - before[0], total - before[1]
            if not count:
                continue
            node = self._nodes.get(netns, MACHINE)
            match kind:
                case "syscall":
                    name = self._syscalls.get(number, str(number))
                    add(node, kind, name, count, 0)
                    if name in _INBOUND | _OUTBOUND:
                        add(node, "copied", "in" if name in _INBOUND else "out", count, total)
                case "off_cpu":
                    add(node, kind, self._reason(number), count, total / 1e9)
                case "wakeup":
                    add(node, kind, f"{2**number / 1e3:g}us", count, total / 1e9)
                case "drop":
                    add(node, kind, self._reasons.get(number, str(number)), count, 0)
                case "softirq":
                    add(node, kind, _VECTORS[number], count, total / 1e9)
                case _:
                    add(node, kind, "", count, total)
        for program in programs(self._nodes).values():
            none = Program(program.node, program.number, program.tag, 0, 0.0)
            earlier = self._programs.get(program.number, none)
            if program.runs > earlier.runs:
                add(
                    program.node,
                    "program",
                    self._kernel.program(program.tag),
                    program.runs - earlier.runs,
                    program.seconds - earlier.seconds,
                )
        return [Count(*key, count, totals[key]) for key, count in sorted(found.items())]

    def _reason(self, number: int) -> str:
        if number == constant("TELEMETRY_PREEMPTED"):
            return "preempted"
        if number == constant("TELEMETRY_NO_SYSCALL"):
            return self._classes.wait(None)
        return self._classes.wait(self._syscalls.get(number, ""))


def _within(windows: Windows | None, node: str, moment: float) -> bool:
    if windows is None:
        return True
    starts, ends = windows.get(node) or windows.get("*") or ((), ())
    place = int(np.searchsorted(starts, moment, "right")) - 1
    return place >= 0 and moment < ends[place]


def _length(windows: Windows | None, seconds: float) -> float:
    if windows is None:
        return seconds
    lengths = [
        sum(end - start for start, end in zip(*each, strict=True)) for each in windows.values()
    ]
    return sum(lengths) / len(lengths) if lengths else 0.0


def _syscall_names() -> dict[int, str]:
    """The names of this architecture's system calls, by number."""
    from bcc.syscall import syscalls

    return {number: name.decode() for number, name in syscalls.items()}
