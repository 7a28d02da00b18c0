"""The expected results of a scenario's collectives: bit for bit for in-kernel ones, within a bound
for others. Pure.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.ring.layout import Pace
from testbed.comm.backend import Tensor, sum_bound
from testbed.comm.options import SEGMENT, Lanes
from testbed.exchange.pinch.fixed_point import SLACK
from testbed.exchange.pinch.layout import is_packed
from testbed.protocol.lanes import Lanes as LaneFormat
from testbed.protocol.scale import ScaleGuess
from testbed.protocol.status import finite_absmax
from testbed.soak.scenario import Scenario, make_embeddings, make_graph, make_input
from testbed.testing.aggregates import (
    Format,
    HasHalos,
    Kept,
    Travelling,
    exact,
    float_aggregates,
    magnitude,
    sent,
    token_aggregates,
)
from testbed.testing.reference import agree, exact_sum

__all__ = [
    "Answer",
    "RingReference",
    "answers",
    "describe_difference",
    "digest",
    "float_reference",
    "known_exponent",
]


@dataclass(frozen=True)
class Answer:
    """The result that a rank must have.

    :param bound: Largest difference allowed; 0: bit for bit.
    """

    value: NDArray[Any]
    bound: float = 0.0

    @cached_property
    def digest(self) -> bytes:
        """Its `digest`."""
        return digest(self.value)


def digest(result: NDArray[Any]) -> bytes:
    """Tell results apart without sending them."""
    return hashlib.blake2b(result.tobytes(), digest_size=16).digest()


def answers(scenario: Scenario, task: int) -> Iterator[Sequence[Answer]]:
    """The expected results of the collectives of one round, in order, each with one result per
    rank.

    :param task: Its index.
    """
    if task < len(scenario.groups):
        return _sums(scenario, task)
    return _aggregates(scenario, task - len(scenario.groups))


def _sums(scenario: Scenario, index: int) -> Iterator[Sequence[Answer]]:
    group = scenario.groups[index]
    ranks, ring, seen = (
        len(group.members),
        RingReference(group.terms.lanes, group.terms.segment),
        dict[tuple[int, tuple[int, ...]], Answer](),
    )
    kept: dict[int, list[Tensor]] = {}
    for number in list(range(len(group.summands))) * group.times:
        inputs = kept.get(number) or [
            make_input(scenario, index, number, rank) for rank in range(ranks)
        ]
        if group.times > 1:  # small collectives, which are repeated
            kept[number] = inputs
        if scenario.backend != "xdp-ring":
            yield [Answer(*float_reference(inputs))] * ranks
            continue
        key = number, ring.exponents(inputs)
        answer = seen.get(key) or Answer(ring.sum_at(inputs, key[1]))
        if group.times > 1:
            seen[key] = answer
        yield [answer] * ranks


def _aggregates(scenario: Scenario, index: int) -> Iterator[Sequence[Answer]]:
    exchange, graph = scenario.exchanges[index], make_graph(scenario, index)
    embeddings = [
        make_embeddings(scenario, index, number) for number in range(len(exchange.magnitudes))
    ]
    terms = exchange.terms
    if terms.broadcast == "tokens" or terms.aggregate == "process":
        if terms.broadcast == "tokens" and terms.bound is not None:
            how = exchange.aggregation, terms.bound, terms.staleness, terms.dtype, terms.halo
            kept = Kept(graph, *how)
            for x in embeddings * exchange.times:
                yield [Answer(value) for value in kept.aggregates(x)]
            return
        found = []
        for x in embeddings:
            if terms.broadcast == "tokens":
                results = token_aggregates(
                    *(graph, x, exchange.aggregation, terms.dtype, terms.aggregate, terms.halo)
                )
            else:
                results = float_aggregates(graph, x, exchange.aggregation, terms.halo)
            found.append([Answer(value) for value in results])
        for _ in range(exchange.times):
            yield from found
        return
    travels: HasHalos = graph
    aggregation = exchange.aggregation
    if terms.halo == "cover":
        travels = covered = Travelling.of(graph, aggregation)
        aggregation = covered.aggregation
    bits = 16 if terms.lanes == "int16" else 32
    form = Format(bits, packed=is_packed(terms.sums, bits, aggregation))
    senders = sent(travels)
    guess = ScaleGuess(slack=SLACK)
    known = known_exponent(scenario, index) if exchange.known else None
    if isinstance(travels, Travelling):
        embeddings = [travels.rows(graph, x, exchange.aggregation) for x in embeddings]
    seen: dict[tuple[int, int], list[Answer]] = {}
    for number in list(range(len(embeddings))) * exchange.times:
        x = embeddings[number]
        exponent = agree(guess, magnitude(x[senders])) if known is None else known
        if (number, exponent) not in seen:
            exactly = exact(travels, form.quantize(x, exponent), aggregation, form, exponent)
            seen[number, exponent] = [Answer(value) for value in exactly]
        yield seen[number, exponent]


def known_exponent(scenario: Scenario, exchange: int) -> int:
    """An exponent that no embedding of an exchange exceeds.

    :param exchange: Its index.
    """
    numbers = range(len(scenario.exchanges[exchange].magnitudes))
    return max(magnitude(make_embeddings(scenario, exchange, number)) for number in numbers)


class RingReference:
    """A group of ``xdp-ring`` from its first all-reduce on: integer sums at the exponents on which
    it agrees.

    :param lanes: The group's lanes.
    :param segment: The group's option.
    """

    def __init__(self, lanes: Lanes, segment: int = SEGMENT) -> None:
        self._lanes = lanes
        self._pace = Pace(segment=segment)
        self._guesses: dict[int, list[ScaleGuess]] = {}

    def _cut(self, inputs: Sequence[Tensor]) -> list[list[Tensor]]:
        """Each segment's inputs."""
        form = LaneFormat.named(self._lanes, len(inputs))
        return [
            [values[part.start : part.stop] for values in inputs]
            for part in self._pace.cut(inputs[0].size, form)
        ]

    def _seen(self, inputs: Sequence[Tensor]) -> int:
        return LaneFormat.named(self._lanes, len(inputs)).exponent_for(
            max(finite_absmax(values) for values in inputs)
        )

    def exponents(self, inputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The exponents of the next all-reduce, one for each segment.

        :param inputs: Tensors in rank order, shape (n,) each.
        """
        if inputs[0].size == 0:
            return ()
        parts = self._cut(inputs)
        guesses = self._guesses.get(inputs[0].size)
        if guesses is None:  # the first exponent is that of the whole tensor
            first = self._seen(inputs)
            guesses = self._guesses[inputs[0].size] = [ScaleGuess() for _ in parts]
            for guess in guesses:
                guess.learn(first)
        return tuple(
            agree(guess, self._seen(part)) for guess, part in zip(guesses, parts, strict=True)
        )

    def sum_at(self, inputs: Sequence[Tensor], exponents: Sequence[int]) -> Tensor:
        """The result of an all-reduce at the exponents of its segments."""
        if inputs[0].size == 0:
            return inputs[0].copy()
        return np.concatenate(
            [
                exact_sum(part, self._lanes, exponent)
                for part, exponent in zip(self._cut(inputs), exponents, strict=True)
            ]
        )

    def sum(self, inputs: Sequence[Tensor]) -> Tensor:
        """The next all-reduce's result."""
        return self.sum_at(inputs, self.exponents(inputs))


def float_reference(inputs: Sequence[Tensor]) -> tuple[Tensor, float]:
    """Return sums in double precision, shape (n,), and the largest error that sums in single
    precision may have.
    """
    absmax = max((finite_absmax(values) for values in inputs if values.size), default=0.0)
    total: Tensor = np.stack(inputs).sum(axis=0, dtype=np.float64).astype(np.float32)
    return total, 2 * sum_bound(absmax, len(inputs))


def describe_difference(found: NDArray[Any], expected: NDArray[Any], bound: float) -> str | None:
    """Say where a result differs.

    :param bound: Largest difference allowed; 0: bit for bit.
    :returns: None if it does not.
    """
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if bound:
        wrong = np.flatnonzero(~(np.abs(found.astype(np.float64) - expected) <= bound))
    else:
        wrong = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
    if not wrong.size:
        return None
    first = int(wrong[0])
    what = f"{found.flat[first]!r} instead of {expected.flat[first]!r}"
    return f"{wrong.size} of {found.size} elements, the first at {first}: {what}"
