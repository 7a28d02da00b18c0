"""The check of payloads: everyone who computes it uses one table, and it misses none of a million
errors of each kind.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from testbed.kernel.compile import BPF
from testbed.protocol import check_weights
from testbed.protocol.wire import LINEAR_PAYLOAD, WEIGHTS, weigh

TRIALS = 1_000_000
BATCH = 100_000
HALVES = 352  # of a payload of 1,408 bytes
U32, U64 = np.uint32, np.uint64

Draw = Callable[[np.random.Generator, int], np.ndarray]


def test_weights_are_odd_and_different_and_none_is_1() -> None:
    assert len({*check_weights.WEIGHTS}) == check_weights.HALVES >= LINEAR_PAYLOAD // 4
    assert all(weight & 1 and 1 < weight < 1 << 32 for weight in check_weights.WEIGHTS)
    assert sum(weight >> 31 for weight in check_weights.WEIGHTS) in range(
        check_weights.HALVES * 2 // 5, check_weights.HALVES * 3 // 5
    )


def test_programs_and_native_code_read_the_same_table() -> None:
    assert (BPF / "shared" / "weights_abi.h").read_text() == check_weights.header()


@pytest.mark.parametrize("size", [0, 1, 2, 174, 432])
def test_the_check_is_the_same_with_and_without_numpy(size) -> None:
    words = np.random.default_rng(size).integers(0, 1 << 64, size, U64)
    assert weigh(words) == check_weights.weigh_halves(words.view("<u4").tolist())


def flips(count: int) -> Draw:
    """Draw positions of `count` bits independently: where two are equal, fewer bits differ."""

    def draw(random: np.random.Generator, trials: int) -> np.ndarray:
        return random.integers(0, 32 * HALVES, (trials, count))

    return draw


def run(random: np.random.Generator, trials: int) -> np.ndarray:
    """The bits of a burst of at most 64: the first, the last, and any in between; -1 where no bit
    flips.
    """
    length = random.integers(1, 65, trials)
    places = (random.random(trials) * (32 * HALVES - length)).astype(np.int64)[:, None] + np.arange(
        64
    )
    wrong = random.random((trials, 64)) < 0.5
    wrong[:, 0] = True
    wrong[np.arange(trials), length - 1] = True
    wrong &= np.arange(64) < length[:, None]
    return np.where(wrong, places, -1)


def bursts(count: int) -> Draw:
    def draw(random: np.random.Generator, trials: int) -> np.ndarray:
        return np.concatenate([run(random, trials) for _ in range(count)], axis=1)

    return draw


def column(random: np.random.Generator, trials: int) -> np.ndarray:
    """The same bit of four words; the first two are as far apart as the last two."""
    words = HALVES // 2
    apart = random.integers(1, words // 2, trials)
    first = (random.random((trials, 2)) * (words - apart)[:, None]).astype(np.int64)
    places = np.stack([first[:, 0], first[:, 0] + apart, first[:, 1], first[:, 1] + apart], axis=1)
    return 64 * places + random.integers(0, 64, trials)[:, None]


PATTERNS: dict[str, Draw] = {
    **{f"{count} flips": flips(count) for count in (1, 2, 3, 4, 6)},
    "a burst of up to 64 bits": bursts(1),
    "two bursts": bursts(2),
    "four flips in a column": column,
}


def differences(payloads: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The change of payloads' checks, modulo 2**64, when some of their bits flip; a bit that flips
    twice is unchanged.

    :param payloads: uint32, shape (trials, HALVES).
    :param bits: Shape (trials, n): positions of bits in the payload; less than 0: none.
    """
    bits = np.sort(bits, axis=1)
    twice = np.zeros(bits.shape, bool)
    for place in range(1, bits.shape[1]):
        twice[:, place] = (bits[:, place] == bits[:, place - 1]) & ~twice[:, place - 1]
    single = (bits >= 0) & ~twice
    single[:, :-1] &= ~twice[:, 1:]
    halves, masks = bits // 32 % HALVES, U32(1) << (bits % 32).astype(U32)
    rows = np.arange(len(bits))[:, None]
    falls = payloads[rows, halves] & masks > 0
    change = WEIGHTS[halves] * masks.astype(U64)
    change = np.where(falls, U64(0) - change, change)
    return np.where(single, change, U64(0)).sum(axis=1, dtype=U64), single.any(axis=1)


def batches() -> Iterator[np.random.Generator]:
    for seed in range(TRIALS // BATCH):
        yield np.random.default_rng(seed)


@pytest.mark.deep
@pytest.mark.parametrize("name", PATTERNS)
def test_flipped_bits_are_never_missed(name) -> None:
    for random in batches():
        payloads = random.integers(0, 1 << 32, (BATCH, HALVES), U32)
        change, wrong = differences(payloads, PATTERNS[name](random, BATCH))
        assert wrong.sum() > BATCH // 2
        assert (change[wrong] != 0).all()


def test_differences_are_those_of_the_checks() -> None:
    """Compare `differences`, which the million errors rely on, with the checks themselves."""
    random = np.random.default_rng(0)
    payloads = random.integers(0, 1 << 32, (200, HALVES), U32)
    for draw in PATTERNS.values():
        bits = draw(random, len(payloads))
        change, _ = differences(payloads, bits)
        for payload, places, expected in zip(payloads, bits, change.tolist(), strict=True):
            damaged = payload.copy()
            for bit in places[places >= 0]:
                damaged[bit // 32] ^= U32(1 << bit % 32)
            assert (weigh(damaged.view(U64)) - weigh(payload.view(U64))) % (1 << 64) == expected


def test_additions_at_equal_distances_are_never_missed() -> None:
    """+2**a, -2**(a + 1), +2**a: neither sums nor sums of sums detect it."""
    for random in batches():
        middle = random.integers(1, HALVES // 2 - 1, BATCH)
        apart = (random.random(BATCH) * np.minimum(middle, HALVES // 2 - 1 - middle)).astype(
            np.int64
        ) + 1
        upper, a = random.integers(0, 2, BATCH), random.integers(0, 31, BATCH).astype(U64)
        one, two, three = (
            WEIGHTS[2 * word + upper] for word in (middle - apart, middle, middle + apart)
        )
        assert ((one - U64(2) * two + three) << a).all()


def test_words_that_change_places_are_never_missed() -> None:
    for random in batches():
        words = random.integers(0, 1 << 32, (BATCH, 2, 2), U32).astype(U64)  # which, half
        places = random.integers(0, HALVES // 2, (BATCH, 2))
        other = places[:, 0] != places[:, 1]
        by = WEIGHTS[2 * places[:, 0, None] + [0, 1]] - WEIGHTS[2 * places[:, 1, None] + [0, 1]]
        change = ((words[:, 1] - words[:, 0]) * by).sum(axis=1, dtype=U64)
        assert (change[other] != 0).all()


def test_a_flipped_bit_and_one_of_the_check_never_cancel_out() -> None:
    """All such pairs, in both directions."""
    flipped = (WEIGHTS[:, None] << np.arange(32, dtype=U64)).ravel()
    check = U64(1) << np.arange(64, dtype=U64)
    for change in (flipped, U64(0) - flipped):
        assert not np.isin(change, check).any()


def test_two_flipped_bits_never_cancel_out() -> None:
    """All pairs among the first 100 weights: see `weights` for why."""
    change = (WEIGHTS[:100, None] << np.arange(32, dtype=U64)).ravel()
    both = np.concatenate([change, U64(0) - change])
    assert len(np.unique(both)) == len(both)
