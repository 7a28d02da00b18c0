"""Damage to files, and how much memory reading them takes."""

import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from testbed.core.errors import TestbedError

__all__ = ["damaged", "little_memory", "refusals"]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return data with bytes changed, added, repeated or lost, cut off, or zeroed to the end."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(found) + 1)
        match rng.randrange(8):
            case 0 | 1:
                found[place : place + 1] = bytes([rng.randrange(256)])
            case 2:
                found[place : place + 4] = rng.choice([b"\xff", b"\0", b"\x7f"]) * 4
            case 3:
                found[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                del found[place : place + rng.randrange(1, 9)]
            case 5:
                found[place:place] = found[place : place + rng.randrange(1, 99)]
            case 6:
                del found[place:]
            case 7:
                found[place:] = bytes(len(found) - place)
    return bytes(found)


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    """Check that Python, numpy and Arrow allocate less than `most` bytes within it, beyond what
    they have had before.
    """
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    tracemalloc.start()
    try:
        yield
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used < most, f"{used} bytes"
    assert pool.max_memory() < before + most


def refusals(
    read: Callable[[bytes], object], files: Sequence[bytes], seed: int, times: int, most: int
) -> int:
    """Damage files and read them; return how many are refused.

    Any other error than a refusal is raised, as is more than `most` bytes of memory.
    """
    rng = random.Random(seed)
    said = []
    with little_memory(most):
        for _ in range(times):
            try:
                read(damaged(rng.choice(files), rng))
            except TestbedError as error:
                said.append(str(error))
    assert all(line.strip() for text in said for line in text.split("\n"))
    return len(said)
