"""A file with what a machine's CPUs cost, as ``testbed calibrate`` measured it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.files import read_regular
from testbed.core.tables import Table, checked, path_of
from testbed.sim.hardware import Hardware, HostCosts, LinkModel
from testbed.sim.options import SimulationOptions
from testbed.sim.presets import HOST_OF_PRESETS, PRESETS

__all__ = ["Calibration", "hardware_of", "read_calibration"]

_MOST = 1 << 20
_VETH = LinkModel(rate=1e15, overhead=0)
"""A veth has neither a rate nor a wire: what it costs is a CPU's work."""


class Calibration(Table):
    """What was measured, in seconds, and where."""

    frame: float = Field(ge=0, le=1, description="a hop of the ring, switch included")
    byte: float = Field(ge=0, le=1, description="each byte of its payload")
    wakeup: float = Field(ge=0, le=1, description="from an event to the process that waits for it")
    syscall: float = Field(ge=0, le=1, description="a system call")
    prepare: float = Field(
        ge=0, le=1, description="each byte of lanes that is quantized, or dequantized"
    )
    cores: int = Field(ge=1, le=4096, description="CPUs, which all hosts share")
    points: list[dict[str, Any]] = Field(description="all-reduces that were measured")
    provenance: dict[str, Any] = Field(description="the machine, the commit, the time")

    @property
    def hardware(self) -> Hardware:
        """The machine's namespaces, joined by veths."""
        costs = replace(self.costs, cores=self.cores, shared=True)
        return Hardware(costs, _VETH, source=self.source)

    @property
    def costs(self) -> HostCosts:
        """What a host with such CPUs, and as many as hosts have by default, spends."""
        return HostCosts(self.frame, self.byte, self.wakeup, self.syscall, self.prepare)

    @property
    def source(self) -> str:
        """Where the figures are from."""
        commit, when = (self.provenance.get(key) for key in ("git_commit", "time"))
        return f"testbed calibrate: {self.provenance.get('cpu')}, {when}, {commit}"


def hardware_of(options: SimulationOptions, prefix: str) -> Hardware:
    """The hardware that options name: a preset, whose hosts may have the costs in a file of
    ``testbed calibrate`` instead; or the machine that such a file describes.

    :param prefix: What the user has set ends in an option's name, and begins with this.
    :raises SpecError: There is no such hardware.
    """
    name, costs = options.named, options.costs
    if name in PRESETS:
        preset = PRESETS[name]
        if costs is None:
            return preset
        found = _read(costs, f"{prefix}costs", "a file of testbed calibrate")
        links = preset.source.partition(HOST_OF_PRESETS)[0]
        return replace(preset, host=found.costs, source=f"{links}host: {found.source}")
    if costs is not None:
        raise SpecError(
            f"{prefix}costs: {costs!r}: must not be given, as {prefix}hardware is no preset, and"
            " has costs of its own"
        )
    allowed = f"{', '.join(PRESETS)}, or a file of testbed calibrate"
    return _read(name, f"{prefix}hardware", allowed).hardware


def _read(name: str, key: str, allowed: str) -> Calibration:
    if not Path(name).exists():
        raise SpecError(f"{key}: {name!r}: must be {allowed}")
    return read_calibration(Path(name))


def read_calibration(path: Path) -> Calibration:
    """Read a file that ``testbed calibrate`` wrote.

    :raises SpecError: It cannot be read, or is not such a file; the text names the key.
    """
    data = read_regular(path, _MOST)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: must be JSON, as testbed calibrate writes it: {error}") from None
    if not isinstance(values, dict):
        raise SpecError(f"{path}: must be an object, as testbed calibrate writes it")
    try:
        return checked(Calibration, values, lambda place: f"{path_of(place)} =")
    except SpecError as error:
        raise SpecError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None
