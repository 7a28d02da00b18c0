"""Hardware by name, from published figures and from measurements; each says where it is from."""

from __future__ import annotations

from testbed.sim.hardware import Hardware, HostCosts, LinkModel, SwitchModel

__all__ = ["HOST_OF_PRESETS", "PRESETS", "REFERENCE_HOST"]

REFERENCE_HOST = HostCosts(
    frame=0.9e-6, byte=0.16e-9, wakeup=5e-6, syscall=1e-6, prepare=0.16e-9, cores=2
)
"""The reference machine. A hop with 1408 bytes takes 1.13 us of a CPU: 16 MiB in int16 lanes are
summed by 4 ranks on two CPUs in 20.1 ms, in 35,748 hops. Two passes over the payload take 0.16 ns a
byte, as memcpy moves 12 GB/s; the rest is the frame's. Wake-ups and system calls are assumed.
"""

#: 10 m of fibre: group index 1.468 (ITU-T G.652).
_PROPAGATION = 10 * 1.468 / 299_792_458

HOST_OF_PRESETS = "host: the reference machine (REFERENCE_HOST)"


def _preset(gigabits: int, delay: float, buffer: float, source: str) -> Hardware:
    return Hardware(
        REFERENCE_HOST,
        LinkModel(rate=gigabits * 1e9, delay=_PROPAGATION),
        SwitchModel(delay=delay, buffer=buffer),
        f"link: {gigabits} Gb/s Ethernet, 10 m; {source}; {HOST_OF_PRESETS}",
    )


_7160 = (
    "switch: Arista 7160, data sheet and people.ucsc.edu/~warner/Bufs/Arista7160.html: 24 MB;"
    " latency as of the 7050SX"
)

PRESETS = {
    "10g": _preset(
        10,
        600e-9,
        12e6,
        "switch: Arista 7050SX, data sheet in people.ucsc.edu/~warner/Bufs/Arista-7050X: 550 to 650"
        " ns, 12 MB",
    ),
    "25g": _preset(25, 600e-9, 24e6, _7160),
    "100g": _preset(100, 600e-9, 24e6, _7160),
}
"""By the links' rate."""
