"""A scenario's ``[[programs]]``: users' BPF programs on hosts' links, for the whole run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.tables import Table
from testbed.datapath.user_program import Hook

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.plan import FabricPlan

__all__ = ["ProgramSpec", "attached", "check_programs"]


class ProgramSpec(Table):
    """An entry of ``[[programs]]``."""

    host: str = Field(min_length=1, description="host whose link it is attached to")
    file: str = Field(
        pattern=r"^[^\x00]+$", description="C source; relative to the scenario's folder"
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
    from testbed.datapath.programs import compile_program

    for number, each in enumerate(programs):
        try:
            plan.host(each.host)
            compile_program(each.file, each.hook, each.section)
        except SpecError as error:
            raise SpecError(f"programs[{number}]: {error}") from None


@contextmanager
def attached(
    programs: Sequence[ProgramSpec], fabric: Fabric, facts: dict[str, Any]
) -> Iterator[None]:
    """Attach programs; at the end, put what their variables and maps hold into `facts`, for the
    manifest, as ``programs``.
    """
    from testbed.datapath.programs import attach, compile_program

    with ExitStack() as stack:
        made = []
        for each in programs:
            compiled = compile_program(Path(each.file), each.hook, each.section)
            made.append(
                stack.enter_context(
                    attach(fabric, each.host, compiled, each.order == "first", each.rodata)
                )
            )
        yield
        if made:
            facts["programs"] = [
                {"host": one.host, "file": each.file, "hook": each.hook, "values": one.values()}
                for each, one in zip(programs, made, strict=True)
            ]
