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
    costs: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "what hosts cost instead, each with CPUs of its own: a file of testbed calibrate"
        ),
    )

    def located(self, folder: Path) -> Self:
        """Return them with files relative to a folder."""
        files = {"hardware": self.hardware, "costs": self.costs}
        return self.model_copy(
            update={
                key: str(folder / name)
                for key, name in files.items()
                if name is not None and name not in PRESETS
            }
        )

    @property
    def named(self) -> str:
        """The hardware's name, or its file."""
        return self.hardware or "10g"
