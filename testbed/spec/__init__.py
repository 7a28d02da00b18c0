"""Scenario files: what may stand in one, how it is read, and what is said when it is wrong."""

from testbed.spec.load import load_scenario, parse_scenario, read_table
from testbed.spec.scenario import (
    CollectiveSpec,
    DatasetSpec,
    DebianSpec,
    FabricSpec,
    FullGraphSpec,
    ModelSpec,
    PlanetoidSpec,
    Scenario,
    ScenarioSpec,
    SyntheticSpec,
    ToleranceSpec,
    TrainingSpec,
)

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
    "ToleranceSpec",
    "TrainingSpec",
    "load_scenario",
    "parse_scenario",
    "read_table",
]
