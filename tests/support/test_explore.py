"""The explorer, on systems whose answers are known."""

from collections.abc import Iterable, Iterator

import pytest

from tests.support.explore import FAULT, Counterexample, System, explore


class Jugs(System[tuple[int, int]]):
    """Jugs of 3 and 5 litres without marks: 4 litres can be measured in 6 steps."""

    def starts(self) -> list[tuple[int, int]]:
        return [(0, 0)]

    def moves(self, state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        small, large = state
        over, back = min(small, 5 - large), min(large, 3 - small)
        yield "fill 3", (3, large)
        yield "fill 5", (small, 5)
        yield "empty 3", (0, large)
        yield "empty 5", (small, 0)
        yield "3 to 5", (small - over, large + over)
        yield "5 to 3", (small + back, large - back)

    def check(self, state: tuple[int, int]) -> str | None:
        return "4 litres" if state[1] == 4 else None

    def is_end(self, state: tuple[int, int]) -> bool:
        return state == (0, 0)


class Spilling(Jugs):
    def check(self, state: tuple[int, int]) -> None:
        return None


def test_all_states_are_visited_once() -> None:
    """At least one jug is always full or empty, so 16 of the 4 times 6 states are reached."""
    assert str(explore(Spilling())) == "16 states, 96 moves, 1 end"


def test_a_counterexample_is_as_short_as_possible() -> None:
    with pytest.raises(Counterexample, match="4 litres, after 6 moves") as raised:
        explore(Jugs())
    assert raised.value.moves == ["fill 5", "5 to 3", "empty 3", "5 to 3", "fill 5", "5 to 3"]


class Transfer(System[tuple[int, int, int, bool, int, bool, int]]):
    """The alternating bit protocol (Bartlett, Scantlebury, Wilkinson, CACM 12(5), 1969): two
    messages, and at most one frame in flight per direction.

    A state consists of: messages acknowledged; messages accepted; the sender's copy in flight (its
    message, or -1); whether an acknowledgement is in flight; what it acknowledges; whether the
    receiver is wrong; losses left.

    :param resends: Whether the sender has a timer.
    :param bit: Whether receivers check the bit.
    """

    def __init__(self, resends: bool = True, bit: bool = True, losses: int = 2) -> None:
        self.resends, self.bit, self.losses = resends, bit, losses

    def starts(self) -> list[tuple[int, int, int, bool, int, bool, int]]:
        return [(0, 0, 0, False, 0, False, self.losses)]

    def moves(
        self, state: tuple[int, int, int, bool, int, bool, int]
    ) -> Iterator[tuple[str, tuple[int, int, int, bool, int, bool, int]]]:
        done, taken, in_flight, answered, of, wrong, losses = state
        if in_flight >= 0:
            new = in_flight % 2 == taken % 2 or not self.bit
            yield (
                "take",
                (
                    done,
                    taken + new,
                    -1,
                    True,
                    in_flight,
                    wrong or (new and in_flight != taken),
                    losses,
                ),
            )
            if losses:
                yield f"{FAULT}lose it", (done, taken, -1, answered, of, wrong, losses - 1)
        elif done < 2 and not answered and self.resends:
            yield "send again", (done, taken, done, answered, of, wrong, losses)
        if answered and in_flight < 0:
            after = done + (of == done)
            yield (
                "hear",
                (
                    after,
                    taken,
                    after if after < 2 and after != done else -1,
                    False,
                    of,
                    wrong,
                    losses,
                ),
            )
            if losses:
                yield f"{FAULT}lose answer", (done, taken, in_flight, False, of, wrong, losses - 1)

    def check(self, state: tuple[int, int, int, bool, int, bool, int]) -> str | None:
        return "a message was taken twice" if state[5] else None

    def is_end(self, state: tuple[int, int, int, bool, int, bool, int]) -> bool:
        return state[0] == 2 and state[1] == 2


def test_nothing_is_found_wrong_with_a_correct_protocol() -> None:
    explore(Transfer())
    explore(Transfer(resends=False, losses=0))


@pytest.mark.parametrize(
    ("options", "what", "moves"),
    [
        ({"resends": False}, "deadlock", 1),
        ({"bit": False}, "a message was taken twice", 4),
    ],
)
def test_a_part_left_out_of_a_protocol_shows(
    options: dict[str, bool], what: str, moves: int
) -> None:
    with pytest.raises(Counterexample, match=what) as raised:
        explore(Transfer(**options))
    assert len(raised.value.moves) == moves


class Door(System[str]):
    """After a step to the left the end is reached only by chance, or not at all."""

    def __init__(self, luck: str | None) -> None:
        self.luck = luck

    def starts(self) -> list[str]:
        return ["here"]

    def moves(self, state: str) -> Iterable[tuple[str, str]]:
        ways = {
            "here": [("left", "hall"), ("right", "out")],
            "hall": [("on", "stairs")],
            "stairs": [("back", "hall")],
        }
        lucky = [(self.luck, "out")] if self.luck and state == "stairs" else []
        return ways.get(state, []) + lucky

    def check(self, state: str) -> None:
        return None

    def is_end(self, state: str) -> bool:
        return state == "out"


def test_an_endless_cycle_is_no_progress() -> None:
    for luck in (None, f"{FAULT}luck"):
        with pytest.raises(Counterexample, match="no end can be reached any more") as raised:
            explore(Door(luck))
        assert raised.value.moves == ["left"]
    explore(Door("a key"))


def test_the_number_of_states_can_be_limited() -> None:
    found = explore(Door("a key"), most=2)
    assert not found.complete
    assert str(found) == "3 states, 2 moves, 1 end, and more states"
