"""`Manifest`: what a run's ``manifest.json`` says, wherever that comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from testbed.core.errors import SpecError

__all__ = ["SCHEMA", "Manifest"]

SCHEMA = "collective-testbed/run/1"


_ABSENT: Any = None  # what a manifest need not have: earlier versions, and runs that have not ended


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Dataset(_Part):
    name: str
    vertices: int
    edges: int
    classes: int
    features: int
    train: int
    val: int
    test: int


class _Named(_Part):
    name: str = _ABSENT
    workload: str = _ABSENT


class _Scenario(_Part):
    """Of its tables, those that all workloads have."""

    scenario: _Named = _ABSENT
    fabric: dict[str, Any] = _ABSENT
    telemetry: dict[str, Any] = _ABSENT
    tolerance: dict[str, Any] | None = _ABSENT
    faults: list[str] = _ABSENT
    programs: list[dict[str, Any]] = _ABSENT

    @model_validator(mode="after")
    def _tables(self) -> _Scenario:
        for key, value in (self.model_extra or {}).items():
            if not isinstance(value, dict):
                raise ValueError(f"{key} = {value!r}: must be a table")
        return self


class _Probe(_Part):
    name: str
    level: str


class _Form(_Part):
    """The types of what readers rely on."""

    scenario: _Scenario = _ABSENT
    command: list[str] = _ABSENT
    seed: int = _ABSENT
    plan_hash: str = _ABSENT
    status: str = _ABSENT
    started: str = _ABSENT
    git_commit: str | None = _ABSENT
    kernel: str = _ABSENT
    cpu: str = _ABSENT
    cpus: int = _ABSENT
    load_average: float = _ABSENT
    memory_bytes: int = _ABSENT
    versions: dict[str, str] = _ABSENT
    busy: float | None = _ABSENT
    seconds: float = _ABSENT
    error: str | None = _ABSENT
    parameters: int = _ABSENT
    gradient_bytes: int = _ABSENT
    dataset: _Dataset = _ABSENT
    doctor: list[_Probe] = _ABSENT
    hardware: dict[str, Any] | None = _ABSENT


class Manifest(dict[str, Any]):
    """A table of a manifest; what it lacks is named in an error.

    :param place: The file; `prefix`: where in it this table is.
    """

    def __init__(self, table: dict[str, Any], place: Path, prefix: str = "") -> None:
        super().__init__(
            {
                key: Manifest(value, place, f"{prefix}{key}.") if isinstance(value, dict) else value
                for key, value in table.items()
            }
        )
        self._place, self._prefix = place, prefix

    def __missing__(self, key: str) -> Any:
        raise SpecError(f"{self._place}: {self._prefix}{key} is missing")

    @classmethod
    def checked(cls, table: dict[str, Any], place: Path) -> Manifest:
        """Return a run's manifest.

        :raises SpecError: It is none of a run, or something in it is of another type; the text
            names it.
        """
        if table.get("schema") != SCHEMA:
            raise SpecError(
                f'{place}: schema = {table.get("schema")!r}: must be "{SCHEMA}": it is no run\'s'
            )
        try:
            _Form.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            if first["type"] == "missing":
                raise SpecError(f"{place}: {key} is missing") from None
            if first["type"] == "value_error":
                raise SpecError(f"{place}: {key}.{first['ctx']['error']}") from None
            wrong = repr(first["input"])
            wrong = wrong if len(wrong) < 60 else f"{wrong[:57]}..."
            raise SpecError(f"{place}: {key} = {wrong}: {first['msg'].lower()}") from None
        return cls(table, place)
