"""What owns a resource and gives it back at the end of a ``with`` block."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing(ABC):
    """A context manager that closes itself on the way out, whether or not there was an error."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; harmless when called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
