"""Minibatches in the order in which they are trained on, prepared a group at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from testbed.core.closing import Closing
from testbed.gnn.sampling import Vertices
from testbed.sampling.groups import Minibatch

__all__ = ["Feed"]

Prepare = Callable[[Sequence[Vertices]], list[Minibatch]]


class Feed(Closing):
    """The minibatches of an epoch.

    :param prepare: Prepares a group.
    :param seeds: Of each minibatch.
    :param together: Minibatches of a group.
    :param ahead: Prepare the next group in a thread, as soon as one has begun to be used.
    """

    def __init__(
        self, prepare: Prepare, seeds: Sequence[Vertices], together: int, ahead: bool
    ) -> None:
        self._prepare = prepare
        self._groups = deque(
            seeds[first : first + together] for first in range(0, len(seeds), together)
        )
        self._ready: deque[Minibatch] = deque()
        self._pool = ThreadPoolExecutor(1, "sampling") if ahead else None
        self._next: Future[list[Minibatch]] | None = None
        self._go_on()

    def take(self) -> Minibatch:
        """Return the next minibatch, once it is prepared.

        :raises CollectiveError: A rank did not answer; the text names it.
        """
        if not self._ready:
            if self._next is not None:
                self._ready.extend(self._next.result())
                self._go_on()
            else:
                self._ready.extend(self._prepare(self._groups.popleft()))
        return self._ready.popleft()

    def _go_on(self) -> None:
        """Begin to prepare the next group."""
        self._next = None
        if self._pool is not None and self._groups:
            self._next = self._pool.submit(self._prepare, self._groups.popleft())

    def close(self) -> None:
        """Wait until nothing is being prepared any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
