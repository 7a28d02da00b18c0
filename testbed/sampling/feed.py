"""Minibatches in the order in which they are trained on, prepared a group at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from testbed.core.closing import Closing
from testbed.gnn.sampling import Vertices
from testbed.sampling.groups import Minibatch, Sampled

__all__ = ["Feed"]


class Feed(Closing):
    """The minibatches of an epoch.

    :param sample: Samples a group.
    :param fetch: Fetches a group's features; it is also given the groups that come next.
    :param seeds: Of each minibatch.
    :param together: Minibatches of a group.
    :param ahead: Prepare the next group in a thread, as soon as one has begun to be used.
    :param horizon: Groups that are sampled before the features of one are fetched.
    """

    def __init__(
        self,
        sample: Callable[[Sequence[Vertices]], Sampled],
        fetch: Callable[[Sampled, Sequence[Sampled]], list[Minibatch]],
        seeds: Sequence[Vertices],
        together: int,
        ahead: bool,
        horizon: int = 0,
    ) -> None:
        self._sample, self._fetch, self._horizon = sample, fetch, horizon
        self._groups = deque(
            seeds[first : first + together] for first in range(0, len(seeds), together)
        )
        self._sampled: deque[Sampled] = deque()
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
                self._ready.extend(self._prepare())
        return self._ready.popleft()

    def _prepare(self) -> list[Minibatch]:
        while self._groups and len(self._sampled) <= self._horizon:
            self._sampled.append(self._sample(self._groups.popleft()))
        return self._fetch(self._sampled.popleft(), list(self._sampled))

    def _go_on(self) -> None:
        """Begin to prepare the next group."""
        self._next = None
        if self._pool is not None and (self._groups or self._sampled):
            self._next = self._pool.submit(self._prepare)

    def close(self) -> None:
        """Wait until nothing is being prepared any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
