"""The tables and keys of a scenario file, one model a table; unknown keys are refused."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
    model_validator,
)

from testbed.collectives.group import MAX_GAP, Affinity, Lanes, OnOverflow, RecoveryFrom
from testbed.collectives.registry import TRANSPORTS
from testbed.collectives.transport import Datapath
from testbed.exchange.interface import MAX_STALENESS, Processing
from testbed.exchange.registry import EXCHANGES
from testbed.faults.spec import Fault, words
from testbed.spec.fit import check_faults

__all__ = [
    "CollectiveSpec",
    "DatasetSpec",
    "DebianSpec",
    "FabricSpec",
    "FullGraphSpec",
    "ModelSpec",
    "PlanetoidSpec",
    "Scenario",
    "ScenarioSpec",
    "SyntheticSpec",
    "Table",
    "ToleranceSpec",
    "TrainingSpec",
]

TransportName = Literal["xdp-ring", "tcp-ring", "gloo", "mpi"]
ExchangeName = Literal["pinch", "tcp-pull", "tcp-push", "gloo"]
Topology = Literal["star", "ring", "leaf-spine"]

PATH = r"^[^\x00]+$"  # what the kernel takes for a path

DATA_PARALLEL = (("collective", None), ("model", "fanout"), ("training", "batch_size"), ("training", "steps"))
"""Tables and keys that only data-parallel training has."""


class Table(BaseModel):
    """A table of the file. TOML has types, so values are not converted: ``"4"`` is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ScenarioSpec(Table):
    """``[scenario]``: what is run, and how often."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=60)
    kind: Literal["ddp", "gnn"] = Field(default="ddp", description="gnn: full-graph training, which [exchange] stands for")
    description: str = ""
    seed: int = Field(default=1, ge=0, lt=1 << 32)
    trials: int = Field(default=1, ge=1, le=100)
    fault_seed: int | None = Field(default=None, ge=0, lt=1 << 64, description="of the faults' fate; without it, `seed`")


class FabricSpec(Table):
    """``[fabric]``: hosts, links and switches."""

    hosts: int = Field(default=4, ge=1, le=32)
    topology: Topology = "star"
    k: int | None = Field(default=None, ge=2, le=16, description="leaf-spine: number of leaves")
    switch: Literal["bridge", "xdp"] = "xdp"
    mtu: int = Field(default=1500, ge=576, le=9000, description="bytes of an IP packet")
    offload: Literal["on", "off"] = "on"


class CollectiveSpec(Table):
    """``[collective]``: the transports that take turns, and the terms that they all get."""

    transports: tuple[TransportName, ...] = Field(default=("xdp-ring", "tcp-ring", "gloo"), min_length=1, strict=False)
    lanes: Lanes = "int32"
    window: int = Field(default=8, ge=1, le=256, description="frames in flight an owner")
    recovery: RecoveryFrom = Field(default="upstream", description="whom a rank asks for what it lacks")
    gap: int = Field(default=1, ge=0, le=MAX_GAP, description="later frames before a missing one is asked for; 0: by the timer")
    timeout: float = Field(default=30.0, gt=0, le=3600, description="seconds without an answer")
    on_overflow: OnOverflow = "error"
    affinity: Affinity = "rank"

    @model_validator(mode="after")
    def _no_repeats(self) -> "CollectiveSpec":
        if len(set(self.transports)) != len(self.transports):
            raise ValueError("transports: each may be named once")
        return self


class FullGraphSpec(Table):
    """``[exchange]``: full-graph training; the exchanges that take turns, and the terms that they all get."""

    transports: tuple[ExchangeName, ...] = Field(default=("pinch", "tcp-pull", "tcp-push", "gloo"), min_length=1, strict=False)
    partitioner: Literal["hash", "range", "metis"] = "metis"
    lanes: Lanes = "int32"
    window: int = Field(default=32, ge=1, le=256, description="frames in flight a rank")
    timeout: float = Field(default=30.0, gt=0, le=3600, description="seconds without an answer")
    bound: float | None = Field(default=None, ge=0, description="pinch sends no vertex again that has changed by no more")
    staleness: int = Field(default=10, ge=1, le=MAX_STALENESS, description="exchanges after which it sends it all the same")
    processing: Processing = "pinned"
    affinity: Affinity = "rank"
    turn: int = Field(default=5, ge=1, le=10_000, description="epochs that a transport's turn lasts")

    @model_validator(mode="after")
    def _no_repeats(self) -> "FullGraphSpec":
        if len(set(self.transports)) != len(self.transports):
            raise ValueError("transports: each may be named once")
        return self


class _Dataset(Table):
    seed: int = Field(default=1, ge=0, lt=1 << 32, description="of the split, and of the graph where it is drawn")
    train_fraction: float = Field(default=0.6, gt=0, lt=1)
    val_fraction: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _room_for_test(self) -> "_Dataset":
        if self.train_fraction + self.val_fraction >= 1:
            raise ValueError("train_fraction + val_fraction must be less than 1: the rest is the test set")
        return self


class DebianSpec(_Dataset):
    """Debian's package graph, from this box's APT lists."""

    name: Literal["debian"]
    lists: str = Field(default="/var/lib/apt/lists", pattern=PATH, description="folder of APT's lists")
    feature_dim: int = Field(default=512, ge=8, le=8192)


class PlanetoidSpec(Table):
    """A citation graph in torch-geometric's layout: ``<path>/<graph>/raw/ind.<graph>.*``."""

    name: Literal["planetoid"]
    path: str = Field(pattern=PATH)
    graph: Literal["Cora", "CiteSeer", "PubMed"] = "Cora"


class SyntheticSpec(_Dataset):
    """A labelled R-MAT graph, drawn from `seed`."""

    name: Literal["synthetic"]
    scale: int = Field(default=12, ge=4, le=22, description="log2 of the number of vertices")
    edge_factor: int = Field(default=8, ge=1, le=64, description="edges drawn a vertex")
    classes: int = Field(default=8, ge=2, le=1024)
    feature_dim: int = Field(default=64, ge=1, le=8192)
    noise: float = Field(default=1.0, ge=0, le=100, description="standard deviation of the features' noise")


DatasetSpec = Annotated[DebianSpec | PlanetoidSpec | SyntheticSpec, Field(discriminator="name")]


class ModelSpec(Table):
    """``[model]``: the network, and how its neighbourhoods are sampled (data-parallel training)."""

    name: Literal["sage", "gcn"] = "sage"
    hidden: int = Field(default=256, ge=1, le=8192)
    layers: int = Field(default=2, ge=1, le=6)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    fanout: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(default=(10, 5), min_length=1, strict=False)

    @model_validator(mode="after")
    def _fanout_a_layer(self) -> "ModelSpec":
        if "fanout" in self.model_fields_set:
            self.check_fanout()
        return self

    def check_fanout(self) -> None:
        """Raise `ValueError` where layers and numbers do not match; full-graph training has none."""
        if len(self.fanout) != self.layers:
            raise ValueError(f"fanout: has {len(self.fanout)} numbers for {self.layers} layers: give one a layer")


class TrainingSpec(Table):
    """``[training]``: by minibatches, or full-graph by one step an epoch."""

    epochs: int = Field(default=5, ge=1, le=10_000)
    batch_size: int = Field(default=64, ge=1, le=1 << 20, description="training vertices a rank and step")
    steps: int | None = Field(
        default=None, ge=1, le=1 << 31, description="steps an epoch at most; without it, one pass over the set"
    )
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = Field(default=0.003, gt=0, le=100)
    weight_decay: float = Field(default=0.0, ge=0, le=1)


class ToleranceSpec(Table):
    """``[tolerance]``: how far a transport may be from the reference, the first fp32 transport."""

    loss: float = Field(default=0.02, ge=0, description="largest distance of two loss curves, at any epoch")
    accuracy: float = Field(default=0.5, ge=0, le=100, description="distance of test accuracies in percentage points")


class Scenario(Table):
    """A whole scenario file."""

    scenario: ScenarioSpec
    fabric: FabricSpec = FabricSpec()
    collective: CollectiveSpec = CollectiveSpec()
    exchange: FullGraphSpec | None = None
    dataset: DatasetSpec
    model: ModelSpec = ModelSpec()
    training: TrainingSpec = TrainingSpec()
    tolerance: ToleranceSpec = ToleranceSpec()
    faults: tuple[Fault, ...] = Field(default=(), strict=False)

    @property
    def fault_seed(self) -> int:
        """What faults draw their fate from."""
        return self.scenario.seed if self.scenario.fault_seed is None else self.scenario.fault_seed

    @property
    def transports(self) -> tuple[str, ...]:
        """The names of what takes turns."""
        return self.exchange.transports if self.exchange else self.collective.transports

    def needs(self, transport: str) -> Datapath:
        """Return the datapath that one of `transports` works on."""
        return EXCHANGES[transport].needs if self.exchange else TRANSPORTS[transport].needs

    @model_serializer(mode="wrap")
    def _what_counts(self, make: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what this kind of training does not have."""
        tables: dict[str, Any] = make(self)
        for table, key in DATA_PARALLEL if self.exchange else [("exchange", None)]:
            if key is None:
                del tables[table]
            else:
                del tables[table][key]
        return tables

    @field_serializer("faults")
    def _faults_in_words(self, faults: tuple[Fault, ...]) -> list[str]:
        return [words(fault) for fault in faults]

    @model_validator(mode="before")
    @classmethod
    def _kind_by_table(cls, tables: Any) -> Any:
        if isinstance(tables, dict) and "exchange" in tables and isinstance(named := tables.get("scenario"), dict):
            return {**tables, "scenario": {"kind": "gnn", **named}}
        return tables

    @model_validator(mode="after")
    def _kind_fits(self) -> "Scenario":
        kind = self.scenario.kind
        if (kind == "gnn") != (self.exchange is not None):
            allowed = "gnn, or no table [exchange]" if self.exchange else "ddp, or a table [exchange]"
            raise ValueError(f'scenario.kind = "{kind}": allowed is {allowed}')
        if self.exchange is None:
            if self.model.name == "gcn":
                raise ValueError('model.name = "gcn": allowed is sage in data-parallel training, or a table [exchange]')
            try:
                self.model.check_fanout()
            except ValueError as error:
                raise ValueError(f"model.{error}") from None
            return self
        for table, key in DATA_PARALLEL:
            if (key or table) in (getattr(self, table) if key else self).model_fields_set:
                where = f"{table}.{key}" if key else f"table [{table}]"
                raise ValueError(f"{where}: full-graph training, which [exchange] stands for, has none: leave it out")
        if self.fabric.hosts == 1:
            raise ValueError("fabric.hosts = 1: allowed is at least 2 with [exchange]")
        return self

    @model_validator(mode="after")
    def _shape_fits(self) -> "Scenario":
        if self.fabric.k is not None and self.fabric.topology != "leaf-spine":
            raise ValueError(f"fabric.k: only topology leaf-spine has it, not {self.fabric.topology}")
        return self

    @model_validator(mode="after")
    def _faults_fit(self) -> "Scenario":
        check_faults(self)
        return self

    def resolve(self, base: Path) -> "Scenario":
        """Return the scenario with its data set's relative path taken from the folder `base`."""
        if not isinstance(self.dataset, PlanetoidSpec) or Path(self.dataset.path).is_absolute():
            return self
        path = str((base / self.dataset.path).resolve())
        return self.model_copy(update={"dataset": self.dataset.model_copy(update={"path": path})})
