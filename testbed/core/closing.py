"""Base classes of objects that own resources and release them at the end of a ``with`` block."""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Self

__all__ = ["Closing", "Stacked"]


class Closing(ABC):
    """A context manager that closes itself on exit, whether or not there was an error."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Stacked(ABC):
    """A context manager that opens its resources on entry, and releases them on exit in reverse
    order, or at once if one of them cannot be opened.
    """

    @abstractmethod
    def _enter(self, stack: ExitStack) -> None:
        """Open each resource, and leave its release on the stack."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
