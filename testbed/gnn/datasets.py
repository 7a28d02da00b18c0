"""The data sets by name: their scenario keys, and the folder that all workers map into memory."""

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from testbed.core.registry import Registry
from testbed.core.tables import FileName, Table
from testbed.host import estimates

__all__ = ["DATASETS", "Dataset", "PathName", "SplitDataset"]

PathName = Annotated[str, Field(pattern=r"^[^\x00]+$"), FileName()]
"""What the kernel accepts as a path."""


class Dataset(Table):
    """``[dataset]``; its key `name` selects the model."""

    name: str

    @abstractmethod
    def prepare(self) -> Path:
        """Parse or generate the graph if that is not done yet; return its folder
        (`testbed.gnn.graph.GraphData.load`).

        :raises SpecError: The data do not exist or cannot be read.
        :raises StorageError: The cache cannot be read or written.
        """

    def resolve(self, base: Path) -> Self:
        """Return the data set with relative paths taken from a folder."""
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that determine the graph's size."""
        return ()

    def estimate(self) -> tuple[estimates.Graph, int] | None:
        """Return the sizes of the graph and the number of its labels; None if they are only known
        once it is read.
        """
        return None


class SplitDataset(Dataset):
    """A data set whose vertices are split at random."""

    seed: int = Field(
        default=1, ge=0, lt=1 << 32, description="of the split, and of the graph where it is drawn"
    )
    train_fraction: float = Field(default=0.6, gt=0, lt=1)
    val_fraction: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _room_for_test(self) -> Self:
        if self.train_fraction + self.val_fraction >= 1:
            raise ValueError(
                "train_fraction + val_fraction must be less than 1: the rest is the test set"
            )
        return self


DATASETS: Registry[type[Dataset]] = Registry(
    "data set",
    f"{__name__}:Dataset",
    {
        "debian": "testbed.gnn.debian:DebianSpec",
        "debian-files": "testbed.gnn.debian_files:DebianFilesSpec",
        "planetoid": "testbed.gnn.planetoid:PlanetoidSpec",
        "pyg": "testbed.gnn.pyg:PygSpec",
        "synthetic": "testbed.gnn.synthetic:SyntheticSpec",
    },
    group="testbed.datasets",
)
