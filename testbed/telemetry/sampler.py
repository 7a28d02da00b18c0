"""The BPF program of `bpf/telemetry.bcc.c`, and what is read from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.core.closing import Stacked
from testbed.core.errors import KernelError
from testbed.host.paths import ROOT
from testbed.kernel.abi import constant, dtype, enum
from testbed.kernel.bcc_headers import use_bcc_headers
from testbed.kernel.btf import Btf
from testbed.kernel.libbpf import check, libbpf
from testbed.kernel.maps import Map
from testbed.kernel.ring_buffer import RingReader

__all__ = ["Mode", "Sampler", "drop_reasons", "kernel_types"]

_HASH, _RINGBUF = 1, 27  # enum bpf_map_type
_SOURCE: Final = ROOT / "bpf" / "telemetry.bcc.c"

_OFFSETS: Final = {
    "AT_TASK_PID": ("task_struct", "pid"),
    "AT_TASK_NSPROXY": ("task_struct", "nsproxy"),
    "AT_NSPROXY_NET": ("nsproxy", "net_ns"),
    "AT_NET_INUM": ("net", "ns.inum"),
    "AT_DEVICE_NET": ("net_device", "nd_net.net"),
    "AT_SKB_DEV": ("sk_buff", "dev"),
    "AT_SKB_LEN": ("sk_buff", "len"),
    "AT_NAPI_DEV": ("napi_struct", "dev"),
    "AT_SOCK_NET": ("sock", "__sk_common.skc_net.net"),
}
"""Members of the kernel's structs that the program reads: their offsets are defined when it is
compiled.
"""

_SAMPLING: Final = {"napi_poll": "end_poll", "netif_receive_skb": "note_device"}
_COUNTING: Final = {
    name: f"on_{name}"
    for name in (
        "softirq_entry",
        "softirq_exit",
        "napi_poll",
        "netif_receive_skb",
        "net_dev_xmit",
        "kfree_skb",
        "tcp_retransmit_skb",
        "sched_switch",
        "sched_wakeup",
        "sys_enter",
        "sys_exit",
    )
}
"""Functions of the program by the raw tracepoint that they are for."""

_RUN_TIME: Final = 0  # BPF_STATS_RUN_TIME of linux/bpf.h

Mode = Literal["samples", "counts"]


@cache
def kernel_types() -> Btf:
    """The running kernel's BTF.

    :raises KernelError: It has none.
    """
    try:
        return Btf(Path("/sys/kernel/btf/vmlinux").read_bytes(), "vmlinux")
    except OSError as error:
        raise KernelError(f"the kernel has no BTF: {error}") from error


def drop_reasons() -> dict[int, str]:
    """Names of the kernel's reasons for dropping an skb, in lower case, by number."""
    members = kernel_types().enum("skb_drop_reason").__members__
    return {
        value.value: name.removeprefix("SKB_DROP_REASON_").removeprefix("SKB_").lower()
        for name, value in members.items()
    }


class Sampler(Stacked):
    """The program, loaded while the context is entered; it works in the context `on`.

    :param netns: Inodes of the network namespaces in which events are counted. CPUs are sampled
        whatever they do.
    :param rate: Samples per second of each CPU.
    :raises KernelError: BCC is missing, found no headers or could not compile or load the program.
    """

    def __init__(self, netns: list[int], rate: int) -> None:
        self._netns, self._rate = netns, rate

    def _enter(self, stack: ExitStack) -> None:
        use_bcc_headers()
        try:
            from bcc import BPF, PerfSWConfig, PerfType
        except ImportError as error:
            raise KernelError(f"BCC is not installed: {error}; run: make apt") from error
        self._clock = {
            "ev_type": PerfType.SOFTWARE,
            "ev_config": PerfSWConfig.CPU_CLOCK,
        }
        offsets = [f"-D{name}={kernel_types().offset(*at)}" for name, at in _OFFSETS.items()]
        try:
            self._program = BPF(
                text=_SOURCE.read_text(encoding="utf-8"), cflags=[f"-I{ROOT / 'bpf'}", *offsets]
            )
        except (
            Exception
        ) as error:  # BCC raises Exception itself; the compiler's output is on stderr
            raise KernelError(f"BCC cannot compile {_SOURCE.name}") from error
        stack.callback(self._program.cleanup)
        page = os.sysconf("SC_PAGESIZE")
        self._samples = RingReader(
            self._map("samples", _RINGBUF, constant("TELEMETRY_PAGES") * page),
            dtype("telemetry_sample"),
        )
        self._polls = RingReader(
            self._map("polls", _RINGBUF, constant("TELEMETRY_POLL_PAGES") * page),
            dtype("telemetry_poll"),
        )
        self._lost = self._map("lost", 2, 1, 4, 8)
        self._counts = self._map(
            "counts",
            _HASH,
            constant("TELEMETRY_COUNTS"),
            dtype("telemetry_key").itemsize,
            dtype("telemetry_count").itemsize,
        )
        nodes = self._map("nodes", _HASH, constant("TELEMETRY_NODES"), 4, 4)
        for number in self._netns:
            nodes.update(number, 1)

    def _map(self, name: str, kind: int, entries: int, key: int = 0, value: int = 0) -> Map:
        table = self._program[name]
        return Map(
            name, getattr(table, "map_fd", None) or table.get_fd(), kind, 0, key, value, entries
        )

    @contextmanager
    def on(self, mode: Mode) -> Iterator[None]:
        """Sample or count inside the context.

        :raises KernelError: The kernel refused it.
        """
        with ExitStack() as stack:
            try:
                for tracepoint, function in (_SAMPLING if mode == "samples" else _COUNTING).items():
                    self._program.attach_raw_tracepoint(tracepoint, function)
                    stack.callback(self._program.detach_raw_tracepoint, tracepoint)
                if mode == "samples":
                    self._program.attach_perf_event(
                        fn_name="take_sample", sample_freq=self._rate, **self._clock
                    )
                    stack.callback(self._program.detach_perf_event, **self._clock)
                else:
                    keeper = check(libbpf().bpf_enable_stats(_RUN_TIME), "BPF_ENABLE_STATS")
                    stack.callback(os.close, keeper)
            except KernelError:
                raise
            except Exception as error:  # as above
                raise KernelError(f"telemetry cannot be attached: {error}") from error
            yield

    def read(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Samples and polls since the last call: arrays of ``telemetry_sample`` and
        ``telemetry_poll``.
        """
        samples = self._samples.peek().copy()
        self._samples.advance(len(samples))
        polls = self._polls.peek().copy()
        self._polls.advance(len(polls))
        return samples, polls

    @property
    def lost(self) -> int:
        """Samples for which there was no room."""
        return int.from_bytes(self._lost.lookup(0), "little")

    def counts(self) -> Mapping[tuple[int, str, int], tuple[int, int]]:
        """All counts so far: count and sum by namespace, kind (such as ``off_cpu``) and detail."""
        kinds = {
            value.value: name.removeprefix("TELEMETRY_").lower()
            for name, value in enum("telemetry_kind").__members__.items()
        }
        found = {}
        keys = self._counts.keys()
        for raw in keys:
            key = np.frombuffer(raw, dtype("telemetry_key"))[0]
            value = np.frombuffer(self._counts.lookup(raw), dtype("telemetry_count"))[0]
            place = int(key["netns"]), kinds[int(key["kind"])], int(key["detail"])
            found[place] = int(value["count"]), int(value["sum"])
        return found
