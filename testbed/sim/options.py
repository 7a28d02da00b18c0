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
            "hosts, links and switches: 10g, 25g or 100g, by the links' rate; or a file of testbed"
            " calibrate: the machine that it was measured on, whose CPUs all hosts share; default:"
            " 10g"
        ),
    )
    costs: Annotated[str | None, FileName()] = Field(
        default=None,
        min_length=1,
        description=(
            "what hosts cost instead, each with CPUs of its own: a file of testbed calibrate"
        ),
    )

    def located(self, folder: Path) -> Self:
        """Return them with files relative to a folder."""
        files = {key: str(folder / name) for key, name in FileName.within(self)}
        return self.model_copy(update=files)

    @property
    def named(self) -> str:
        """The hardware's name, or its file."""
        return self.hardware or "10g"
