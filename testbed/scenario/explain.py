"""Pydantic's errors in terms of a scenario file: key, value, what it must be, and the nearest known
key.
"""

from collections.abc import Iterator

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from testbed.core.errors import SpecError
from testbed.core.tables import explain as explain_table
from testbed.core.tables import findings, options, path_of, unknown, wrong
from testbed.faults.spec import MODELS as FAULTS
from testbed.workloads.registry import WORKLOADS

__all__ = ["explain"]


def explain(error: ValidationError, source: str, workload: str, model: type[BaseModel]) -> str:
    """Describe the errors, one per line, each starting with `source`.

    :param source: The scenario file's path.
    :param workload: The scenario's workload.
    :param model: The schema that it was validated by.
    """
    return "\n".join(f"{source}: {_line(detail, workload, model)}" for detail in findings(error))


def _line(detail: ErrorDetails, workload: str, root: type[BaseModel]) -> str:
    place = detail["loc"]
    if len(place) >= 2 and place[0] == "faults":
        return _fault_line(detail)
    if detail["type"] == "extra_forbidden" and (
        others := [name for name in _others(workload) if _has(name, place)]
    ):
        what = path_of(place) if len(place) > 1 else f"table [{path_of(place)}]"
        return f"{what}: belongs to workload {options(others)}, not to {workload}: leave it out"
    return explain_table(detail, root)


def _others(workload: str) -> Iterator[str]:
    return (name for name in WORKLOADS if name != workload)


def _has(workload: str, place: tuple[int | str, ...]) -> bool:
    """Tell whether a workload's scenarios have a table, or a table and its key."""
    try:
        model: type[BaseModel] | None = WORKLOADS[workload].scenario
    except SpecError:  # from another package that is broken
        return False
    for part in place:
        field = model.model_fields.get(str(part)) if model else None
        if field is None:
            return False
        table = field.annotation
        model = table if isinstance(table, type) and issubclass(table, BaseModel) else None
    return True


def _fault_line(detail: ErrorDetails) -> str:
    """Explain an error in a fault, from the descriptions of its fields."""
    index, *rest = detail["loc"][1:]
    path = path_of(["faults", index])
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if kind == "union_tag_not_found":
        return f"{path}.action is missing: must be {options(list(FAULTS))}"
    if kind == "union_tag_invalid":
        return wrong(f"{path}.action =", context["tag"], options(list(FAULTS)), list(FAULTS))
    if not rest:  # neither a table nor text
        allowed = "a table, or words such as drop p=0.01"
        return (
            f"{path}: {context['error']}"
            if kind == "value_error"
            else wrong(f"{path} =", value, allowed)
        )
    action, *keys = rest
    fields = {
        field.alias or name: field for name, field in FAULTS[str(action)].model_fields.items()
    }
    if not keys:  # from our own validators, whose texts start with the key
        return f"{path}.{context['error']}"
    path = path_of(["faults", index, keys[0]])
    if kind == "extra_forbidden":
        known = [key for key in fields if key != "action"]
        return unknown(["faults", index, keys[0]], known)
    allowed = fields[str(keys[0])].description or ""
    return (
        f"{path} is missing: must be {allowed}"
        if kind == "missing"
        else wrong(f"{path} =", value, allowed)
    )
