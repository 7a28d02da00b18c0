"""The options of a simulation, apart from those of what is simulated."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from testbed.core.tables import FileName, Table
from testbed.sim.presets import PRESETS

__all__ = ["SimulationOptions"]


class SimulationOptions(Table):
    """``[simulation]``: on what a scenario runs that is simulated."""

    hardware: Annotated[str | None, FileName(besides=tuple(PRESETS))] = Field(
        default=None,
        min_length=1,
        description=(
            "hosts, links and switches: 10g, 25g or 100g, by the links' rate, or a file of testbed"
            " calibrate; default: 10g"
        ),
    )

    def located(self, folder: Path) -> Self:
        """Return them with a file of hardware relative to a folder."""
        if self.hardware is None or self.hardware in PRESETS:
            return self
        return self.model_copy(update={"hardware": str(folder / self.hardware)})

    @property
    def named(self) -> str:
        """The hardware's name, or its file."""
        return self.hardware or "10g"
