"""A scenario's ``[[programs]]``: users' BPF programs on hosts' links, for the whole run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.logs import logger_of
from testbed.core.tables import Table
from testbed.datapath.user_program import Hook

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.plan import FabricPlan

__all__ = ["ProgramSpec", "attached", "check_programs"]

T = TypeVar("T")
logger = logger_of(__name__)

MOST_TEXT = 8 << 20  # bytes of what programs hold, in a manifest


class ProgramSpec(Table):
    """An entry of ``[[programs]]``."""

    host: str = Field(min_length=1, description="host whose link it is attached to")
    file: str = Field(
        pattern=r"^[^\x00]+$",
        description="C source or a compiled object; relative to the scenario's folder",
    )
    hook: Hook = Field(default="xdp", description="where on the link")
    section: str | None = Field(
        default=None, description="section or function, if the file has several programs"
    )
    order: Literal["first", "last"] = Field(
        default="first", description="before or after the testbed's own programs"
    )
    rodata: dict[str, int] = Field(
        default={}, description="values of constants and initialized variables"
    )


def check_programs(programs: Sequence[ProgramSpec], plan: FabricPlan) -> None:
    """Compile programs, before anything is built.

    :raises SpecError: There is no such host, file or program.
    :raises KernelError: The compiler's message.
    """
    from testbed.datapath.programs import check_frames, compile_program

    for number, each in enumerate(programs):
        try:
            plan.host(each.host)
            check_frames(compile_program(each.file, each.hook, each.section), plan.mtu)
        except SpecError as error:
            raise SpecError(f"programs[{number}]: {error}") from None


@contextmanager
def attached(
    programs: Sequence[ProgramSpec], fabric: Fabric, facts: dict[str, Any]
) -> Iterator[None]:
    """Attach programs; at the end, put what their variables and maps hold into `facts`, for the
    manifest, as ``programs``.

    By then, what was measured is complete, so what cannot be read or detached is said and no
    error.
    """
    from testbed.datapath.programs import attach, compile_program

    with ExitStack() as stack:
        made = []
        for number, each in enumerate(programs):
            compiled = compile_program(Path(each.file), each.hook, each.section)
            one = attach(fabric, each.host, compiled, each.order == "first", each.rodata)
            stack.callback(_said, f"programs[{number}] of {each.host}", one.close)
            made.append(one)
        yield
        left = MOST_TEXT
        for number, (each, one) in enumerate(zip(programs, made, strict=True)):
            what = f"programs[{number}] of {each.host}"
            values, unread = _said(what, one.contents) or ({}, {})
            for name in list(values):
                left -= (size := len(json.dumps(values[name], indent=8)))
                if left < 0:  # the manifest could not be read again
                    left += size
                    unread[name] = f"{name} has {size:,} bytes as text: too many to be kept"
                    del values[name]
            for reason in unread.values():
                logger.warning("%s: %s", what, reason)
            fact = {"host": one.host, "file": each.file, "hook": each.hook, "values": values}
            facts.setdefault("programs", []).append(fact | ({"unread": unread} if unread else {}))


def _said(what: str, function: Callable[[], T]) -> T | None:
    try:
        return function()
    except Exception as error:  # whatever it is, the run's results are there
        logger.warning("%s: %s: %s", what, type(error).__name__, error)
        return None
