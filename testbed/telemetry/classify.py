"""Which class of work a stack belongs to, and which reason a wait has: ``classes.toml``. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.tables import Table, checked, path_of

__all__ = ["UNCLASSIFIED", "Classes", "Part", "load_classes"]

OWN = Path(__file__).with_name("classes.toml")
UNCLASSIFIED = "unclassified"
Part = Literal["network", "kernel", "program", "user"]


class ClassSpec(Table):
    """``[[classes]]``: one class of work.

    :param part: What it is added up with: ``network``, ``kernel``, ``program`` or ``user``.
    :param innermost: Functions that decide only if they are a stack's innermost.
    """

    name: str = Field(pattern=r"^[a-z][a-z_]*$")
    title: str
    part: Part
    kernel: tuple[str, ...] = Field(default=(), strict=False)
    innermost: tuple[str, ...] = Field(default=(), strict=False)
    user: tuple[str, ...] = Field(default=(), strict=False)


class WaitSpec(Table):
    """``[[waits]]``: why a thread was off its CPU, by the system call that it was in."""

    name: str = Field(pattern=r"^[a-z][a-z_]*$")
    syscalls: tuple[str, ...] = Field(strict=False)


class ClassesSpec(Table):
    """The whole file; the order of tables is that of the patterns.

    :param softirq: The functions, one per version of the kernel, that run softirqs.
    """

    softirq: tuple[str, ...] = Field(min_length=1, strict=False)
    classes: tuple[ClassSpec, ...] = Field(strict=False)
    waits: tuple[WaitSpec, ...] = Field(default=(), strict=False)


@dataclass(frozen=True)
class _Patterns:
    """Ordered patterns of one kind, with what each stands for."""

    patterns: tuple[tuple[re.Pattern[str], str], ...]

    def find(self, name: str) -> str | None:
        for pattern, found in self.patterns:
            if match := pattern.search(name):
                program = match.groupdict().get("program")
                return f"{found}.{program}" if program else found
        return None


class Classes:
    """Classifies stacks.

    The innermost function that any pattern names decides; functions that none names, such as locks
    and allocators, count as work of their callers. Of several patterns that name the same function,
    the first one counts. Only a stack without functions of the kernel is classified by its user
    frames.

    :param spec: The validated file.
    :raises SpecError: A pattern is no regular expression.
    """

    def __init__(self, spec: ClassesSpec) -> None:
        self._parts = {each.name: each.part for each in spec.classes}
        self.titles: Mapping[str, str] = {each.name: each.title for each in spec.classes}
        self._kernel = _compile(spec, "kernel")
        self._innermost = _compile(spec, "innermost")
        self._user = _compile(spec, "user")
        self._softirq = frozenset(spec.softirq)
        self._waits = {call: wait.name for wait in spec.waits for call in wait.syscalls}
        self._known: dict[tuple[int, str], str | None] = {}

    @property
    def names(self) -> list[str]:
        """Classes in the file's order."""
        return list(self._parts)

    def part(self, name: str) -> Part | None:
        """What a class, or a program's class such as ``program.ring_rx``, is added up with; None:
        it is unclassified.
        """
        return self._parts.get(name.partition(".")[0])

    def of(self, kernel: Sequence[str], user: Sequence[str]) -> str:
        """The class of a stack.

        :param kernel: Names of the kernel's functions, innermost first; empty in user mode.
        :param user: ``file!function`` of user space, innermost first.
        """
        if not kernel:
            found = (self._find(2, name, self._user) for name in user[:1])
        else:
            found = (
                (index == 0 and self._find(1, name, self._innermost))
                or self._find(0, name, self._kernel)
                for index, name in enumerate(kernel)
            )
        return next((each for each in found if each), UNCLASSIFIED)

    def in_softirq(self, kernel: Sequence[str]) -> bool:
        """Whether a stack of the kernel's functions is that of a softirq."""
        return not self._softirq.isdisjoint(kernel)

    def softirq_part(self, kernel: Sequence[str]) -> Sequence[str]:
        """A stack without what a softirq has interrupted; the whole stack outside softirq."""
        for index, name in enumerate(kernel):
            if name in self._softirq:
                return kernel[: index + 1]
        return kernel

    def wait(self, syscall: str | None) -> str:
        """The reason of a wait in a system call; None: in none."""
        return "fault" if syscall is None else self._waits.get(syscall, "other")

    def _find(self, kind: int, name: str, patterns: _Patterns) -> str | None:
        key = kind, name
        if key not in self._known:
            self._known[key] = patterns.find(name)
        return self._known[key]


def _compile(spec: ClassesSpec, kind: str) -> _Patterns:
    compiled = []
    for index, each in enumerate(spec.classes):
        for number, text in enumerate(getattr(each, kind)):
            try:
                compiled.append((re.compile(text), each.name))
            except re.error as error:
                place = path_of(["classes", index, kind, number])
                raise SpecError(
                    f"{place} = {text!r}: must be a regular expression: {error}"
                ) from None
    return _Patterns(tuple(compiled))


@cache
def load_classes(path: Path = OWN) -> Classes:
    """Read a file of classes.

    :raises SpecError: It is not as it must be; the text has a line per finding.
    """
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path.name}: not TOML: {error}") from None
    return Classes(checked(ClassesSpec, values, lambda place: f"{path_of(place)} ="))
