"""Reading a scenario: the TOML file, the overrides of the command line, and the seed become one
`Scenario`.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from testbed.core.errors import SpecError
from testbed.core.files import read_regular
from testbed.core.numbers import shown
from testbed.core.registry import look_in
from testbed.faults.spec import parse_fault
from testbed.scenario.explain import explain
from testbed.workloads.registry import WORKLOADS, choose
from testbed.workloads.scenario import Scenario
from testbed.workloads.simulated import simulated_model

__all__ = ["add_faults", "load_scenario", "override", "parse_scenario", "read_table"]

LARGEST = 64 << 10  # bytes of a scenario file; tomllib takes time that grows with their square


ARRAYS = {
    "faults": "an array of faults, such as [] or ['drop p=0.01']",
    "programs": "an array of tables, such as [] or [{host = 'h1', file = 'a.bpf.c'}]",
}
"""What a scenario has besides tables."""


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    :raises SpecError: It is not a regular file of at most :data:`LARGEST` bytes, cannot be read, or
        is not TOML.
    """
    try:
        return tomllib.loads(read_regular(path, LARGEST).decode())
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is not text in UTF-8") from error
    except RecursionError as error:
        raise SpecError(f"{path}: is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: is not TOML: {error}") from error
    except ValueError as error:  # int()'s
        raise SpecError(f"{path}: is not TOML: a number has thousands of digits") from error


def override(table: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Apply overrides of the form ``table.key=value`` and return the changed copy.

    The value is TOML (``8``, ``0.5``, ``["tcp-ring", "gloo"]``); anything that is not TOML is taken
    as a string, so that ``fabric.switch=bridge`` needs no quotes inside quotes. What is no table,
    but an array, is replaced as a whole: ``faults=[]`` clears it.

    :raises SpecError: A setting does not have this form.
    """
    changed = {
        key: dict(value) if isinstance(value, dict) else value for key, value in table.items()
    }
    for setting in settings:
        target, equals, text = setting.partition("=")
        name, dot, key = target.strip().partition(".")
        whole = name in ARRAYS and not dot
        if not equals or not name or not (key or whole):
            raise SpecError(
                f"--set {shown(setting)}: must be table.key=value, such as training.epochs=2, or"
                f" {' or '.join(f'{each}=[...]' for each in ARRAYS)}"
            )
        try:
            value: Any = tomllib.loads(f"value = {text}")["value"]
        except RecursionError as error:
            raise SpecError(f"--set {shown(setting)}: is nested too deeply") from error
        except ValueError:  # TOMLDecodeError, or int()'s
            value = text.strip()
        if whole:
            if not isinstance(value, list):
                raise SpecError(f"--set {shown(setting)}: must be {ARRAYS[name]}")
            changed[name] = value
            continue
        section = changed.setdefault(name, {})
        if not isinstance(section, dict):
            raise SpecError(f"--set {shown(setting)}: {name} is not a table in the scenario")
        section[key] = value
    return changed


def parse_scenario(table: dict[str, Any], source: str = "scenario") -> Scenario:
    """Validate a scenario's table.

    :param source: Named at the start of errors; the file's path.
    :raises SpecError: A key or value is wrong; the text has one line for each.
    """
    workload = choose(table)
    if isinstance(named := table.get("scenario"), dict):
        table = {**table, "scenario": {"workload": workload, **named}}
    model = WORKLOADS[workload].scenario
    if isinstance(named, dict) and named.get("engine") == "simulation":
        model = simulated_model(model)
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise SpecError(explain(error, source, workload, model)) from error


def load_scenario(
    path: Path,
    settings: Sequence[str] = (),
    seed: int | None = None,
    faults: Sequence[str] = (),
    fault_seed: int | None = None,
) -> Scenario:
    """Read, override and validate a scenario file.

    Programs' files are relative to the scenario's folder, and so is a `dataset.path`, unless an
    override sets it: then it is relative to the current one.

    :param settings: Overrides, ``table.key=value``.
    :param seed: Overrides ``scenario.seed``.
    :param faults: More faults, as text; they come after the scenario's.
    :param fault_seed: Overrides ``scenario.fault_seed``.
    :raises SpecError: As in `read_table`, `override`, `parse_scenario` and `add_faults`.
    """
    look_in(path.parent)
    table = override(read_table(path), settings)
    for key, value in (("seed", seed), ("fault_seed", fault_seed)):
        if value is not None and isinstance(table.get("scenario"), dict):
            table["scenario"][key] = value
    scenario = add_faults(table, parse_scenario(table, str(path)), faults)
    given = any(setting.partition("=")[0].strip() == "dataset.path" for setting in settings)
    folder = path.resolve().parent
    return scenario.located(folder).resolve(Path.cwd() if given else folder)


def add_faults(table: dict[str, Any], scenario: Scenario, faults: Sequence[str]) -> Scenario:
    """Return a scenario with more faults.

    :param table: The valid table that the scenario was made from.
    :param faults: Faults as text.
    :raises SpecError: Faults are wrong, or do not fit the scenario or earlier faults; each line of
        the text names one of them.
    """
    taken = list(table.get("faults", []))
    wrong: list[str] = []
    for text in faults:
        try:
            parse_fault(text)  # its own error is more informative than the scenario's
        except SpecError as error:
            wrong += [f"--{line}" for line in str(error).splitlines()]
            continue
        source = f"--fault {text!r}"
        try:
            scenario = parse_scenario({**table, "faults": [*taken, text]}, source)
            taken.append(text)
        except SpecError as error:
            places = re.compile(rf"^{re.escape(source)}: (faults\[{len(taken)}\]\.|faults: )?")
            wrong += [places.sub(f"{source}: ", line) for line in str(error).splitlines()]
    if wrong:
        raise SpecError("\n".join(wrong))
    return scenario
