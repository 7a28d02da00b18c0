"""`Registry`: the objects of one kind by name, the testbed's own and other packages'."""

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from testbed.core.errors import SpecError
from testbed.core.numbers import shown

__all__ = ["Registry", "load"]

T = TypeVar("T")


def load(path: str) -> Any:
    """Return the object that ``module:attribute`` names.

    :raises SpecError: There is no such module or attribute, or the import fails because another
        module is missing.
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: an empty name
        raise SpecError(f"{path}: cannot be loaded: {error}") from error


class Registry(Generic[T]):
    """A mapping from names to objects of one kind, which are imported on first use.

    A name is looked up among the testbed's own objects, then among the entry points of installed
    packages; otherwise it is taken as the ``module:attribute`` of an object that no package has
    registered.

    :param noun: The word for an object in errors.
    :param base: ``module:class``: each object is an instance or a subclass of it.
    :param own: The testbed's objects, or the ``module:attribute`` of each.
    :param group: The group of entry points.
    :param adapt: Converts what an entry point or ``module:attribute`` names to an object of `base`.
    """

    def __init__(
        self,
        noun: str,
        base: str,
        own: Mapping[str, T | str],
        group: str,
        adapt: Callable[[Any], T] | None = None,
    ) -> None:
        self.noun, self.group = noun, group
        self._base, self._own, self._adapt = base, own, adapt
        self._loaded: dict[str, T] = {}

    @cached_property
    def _installed(self) -> dict[str, str]:
        found = importlib.metadata.entry_points(group=self.group)
        return {entry.name: entry.value for entry in found if entry.name not in self._own}

    def __iter__(self) -> Iterator[str]:
        """The registered names, the testbed's own first."""
        return iter((*self._own, *self._installed))

    def __len__(self) -> int:
        return len(self._own) + len(self._installed)

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._installed or ":" in name

    def __getitem__(self, name: str) -> T:
        """Return an object.

        :raises SpecError: None has this name, or it cannot be loaded.
        """
        if name not in self._loaded:
            self._loaded[name] = self._find(name)
        return self._loaded[name]

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield the registered names with their objects."""
        return ((name, self[name]) for name in self)

    def _find(self, name: str) -> T:
        if name in self._own:
            found = self._own[name]
            return cast("T", load(found)) if isinstance(found, str) else found
        if name not in self:
            raise SpecError(
                f"{self.noun} {shown(name)} does not exist: must be one of {', '.join(self)}"
            )
        try:
            found = load(self._installed.get(name, name))
        except SpecError as error:
            raise SpecError(f"{self.noun} {error}") from error
        base = load(self._base)
        if not isinstance(found, base) and self._adapt:
            found = self._adapt(found)
        if not (isinstance(found, base) or (isinstance(found, type) and issubclass(found, base))):
            raise SpecError(f"{self.noun} {name}: must be a {base.__name__}, not {shown(found)}")
        return cast("T", found)
