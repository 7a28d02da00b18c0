"""`Registry`: the objects of one kind by name, the testbed's own and other packages'."""

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from testbed.core.errors import SpecError
from testbed.core.numbers import shown

__all__ = ["OTHERS", "Listed", "Registry", "load", "look_in", "registered_only"]

T = TypeVar("T")

FOLDERS = "TESTBED_MODULES"
"""Environment: folders of users' modules, behind all others; processes that are started from here
look there, too.
"""


OTHERS = "module:Class"
"""The form of names that no registry has."""

_STRANGERS: ContextVar[tuple[str, Collection[str]] | None] = ContextVar("strangers", default=None)


@contextmanager
def registered_only(why: str, besides: Collection[str] = ()) -> Iterator[None]:
    """Within it, registries load nothing that no package has registered: names come from a stranger
    there, and a ``module:attribute`` would be executed.

    :param why: The error's text about such a name.
    :param besides: Names that may be loaded all the same.
    """
    token = _STRANGERS.set((why, besides))
    try:
        yield
    finally:
        _STRANGERS.reset(token)


def look_in(folder: Path) -> None:
    """Let ``module:attribute`` name a module of a folder, such as that of a scenario's file."""
    known = os.environ.get(FOLDERS, "").split(os.pathsep)
    if (place := str(folder.resolve())) not in known:
        os.environ[FOLDERS] = os.pathsep.join(filter(None, [*known, place]))


def load(path: str) -> Any:
    """Return the object that ``module:attribute`` names; this imports, and so executes, the module.

    :raises SpecError: There is no such module or attribute, or the module raises an error; the text
        says where.
    """
    module, _, attribute = path.partition(":")
    folders = os.environ.get(FOLDERS, "").split(os.pathsep)
    sys.path += [place for place in folders if place and place not in sys.path]
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: an empty name
        raise SpecError(f"{path}: cannot be loaded: {error}") from error
    except Exception as error:  # whatever a module does when it is imported
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise SpecError(
            f"{path}: cannot be loaded: {reason} ({at.filename}:{at.lineno})"
        ) from error


@dataclass(frozen=True, slots=True)
class Listed:
    """What a registry says about a name.

    :param summary: One line about the object, or why it cannot be loaded.
    :param origin: ``testbed``, or the name and version of the package that has it.
    :param path: ``module:attribute``; empty for an object of the testbed that has none.
    """

    name: str
    summary: str
    origin: str
    path: str


class Registry(Generic[T]):
    """A mapping from names to objects of one kind, which are imported on first use.

    A name is looked up among the testbed's own objects, then among the entry points of installed
    packages; otherwise it is taken as the ``module:attribute`` of an object that no package has
    registered. Nothing is imported that no one has named, except to list what there is.

    :param noun: The word for an object in errors.
    :param base: ``module:class``: each object is a subclass of it.
    :param own: The testbed's objects, or the ``module:attribute`` of each.
    :param group: The group of entry points.
    :param adapt: Converts a class of another package to what the registry has.
    :param instances: Objects are instances of `base` instead.
    """

    def __init__(
        self,
        noun: str,
        base: str,
        own: Mapping[str, T | str],
        group: str,
        adapt: Callable[[Any], T] | None = None,
        instances: bool = False,
    ) -> None:
        self.noun, self.group, self.base = noun, group, base
        self._own, self._adapt, self._instances = own, adapt, instances
        self._loaded: dict[str, T] = {}

    @cached_property
    def _installed(self) -> dict[str, importlib.metadata.EntryPoint]:
        found = importlib.metadata.entry_points(group=self.group)
        return {entry.name: entry for entry in found if entry.name not in self._own}

    def __iter__(self) -> Iterator[str]:
        """The registered names, the testbed's own first."""
        return iter((*self._own, *self._installed))

    def __len__(self) -> int:
        return len(self._own) + len(self._installed)

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._installed or ":" in name

    def __getitem__(self, name: str) -> T:
        """Return an object.

        :raises SpecError: None has this name, or it cannot be loaded, or it is of another kind, or
            a class that lacks methods; or it may not be loaded (`registered_only`).
        """
        strangers = _STRANGERS.get()
        if strangers and name not in (*self._own, *self._installed, *strangers[1]):
            raise SpecError(strangers[0])
        if name not in self._loaded:
            self._loaded[name] = self._find(name)
        return self._loaded[name]

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the testbed's own objects."""
        return tuple(self._own)

    def owns(self, name: str) -> bool:
        """Whether a name is that of one of the testbed's own objects."""
        return name in self._own

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield the registered names with their objects."""
        return ((name, self[name]) for name in self)

    def listed(self) -> Iterator[Listed]:
        """Yield each registered name with a line about its object; this imports all of them."""
        for name in self:
            try:
                summary = summary_of(self[name])
            except SpecError as error:
                summary = str(error)
            if entry := self._installed.get(name):
                package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else self.group
                yield Listed(name, summary, package, entry.value)
            else:
                own = self._own[name]
                yield Listed(
                    name, summary, "testbed", own if isinstance(own, str) else path_of(own)
                )

    def _find(self, name: str) -> T:
        if name in self._own:
            found = self._own[name]
            return cast("T", load(found)) if isinstance(found, str) else found
        if name not in self:
            raise SpecError(
                f"{self.noun} {shown(name)} does not exist: must be one of {', '.join(self)},"
                f" or {OTHERS}"
            )
        entry = self._installed.get(name)
        try:
            found = load(entry.value if entry else name)
        except SpecError as error:
            raise SpecError(f"{self.noun} {error}") from error
        self._check(name, found)
        return self._adapt(found) if self._adapt else cast("T", found)

    def _check(self, name: str, found: Any) -> None:
        base = load(self.base)
        if self._instances:
            if not isinstance(found, base):
                raise SpecError(
                    f"{self.noun} {name}: must be a {base.__name__}, not {shown(found)}"
                )
            return
        if not (isinstance(found, type) and issubclass(found, base)):
            raise SpecError(
                f"{self.noun} {name}: must be a subclass of {base.__module__}.{base.__qualname__},"
                f" not {shown(found)}"
            )
        if missing := ", ".join(sorted(getattr(found, "__abstractmethods__", ()))):
            raise SpecError(f"{self.noun} {name}: does not define {missing}")


def summary_of(found: Any) -> str:
    """Return an object's own ``summary``, or the first sentence of a class's docstring."""
    given = getattr(found, "summary", None)
    if isinstance(given, str) and given:
        return given
    text = (found.__doc__ or "") if isinstance(found, type) else ""
    paragraph = " ".join(text.strip().partition("\n\n")[0].replace("`", "").split())
    return paragraph.partition(". ")[0].removesuffix(".")


def path_of(found: Any) -> str:
    """Return the ``module:attribute`` that an object says it is at, if it does."""
    given = getattr(found, "path", "")
    return given if isinstance(given, str) else ""
