"""Text to vectors by feature hashing.

Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from testbed.host.estimates import HASHED

__all__ = ["hash_features", "words"]

WORD = re.compile(r"[a-z][a-z0-9+#]+")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without numbers and single letters."""
    return WORD.findall(text.lower())


def hash_features(texts: Iterable[str], dim: int, count: int) -> NDArray[np.float32]:
    """Hash each text's words into a vector: +1 or -1 at the position given by a word's hash, scaled
    to length 1.

    The sign comes from the hash as well, so that collisions cancel in expectation and inner
    products stay unbiased. A text without words becomes the zero vector.

    :param texts: n texts, `count`.
    :param dim: Length of a vector.
    :returns: float32, shape (n, dim); rows have Euclidean length 1 or 0.
    """
    found = np.zeros((count, dim), np.float32)
    first = 0
    for some in batched(texts, HASHED):
        found[first : first + len(some)] = _hashed(some, dim)
        first += len(some)
    return found


def batched(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield texts, some at a time (Python 3.12 has this as `itertools.batched`)."""
    rest = iter(texts)
    while some := list(islice(rest, size)):
        yield some


def _hashed(texts: Sequence[str], dim: int) -> NDArray[np.float64]:
    places: dict[str, int] = {}  # word -> its number; words repeat, so each is hashed once
    rows: list[int] = []
    numbers: list[int] = []
    for row, text in enumerate(texts):
        found = [places.setdefault(word, len(places)) for word in words(text)]
        rows += [row] * len(found)
        numbers += found
    digests = b"".join(blake2b(word.encode(), digest_size=8).digest() for word in places)
    hashes = np.frombuffer(digests, "<u8")
    column = (hashes >> np.uint64(1)) % np.uint64(dim)
    sign = 1.0 - 2.0 * (hashes & np.uint64(1)).astype(np.float64)
    index = np.asarray(numbers, np.int64)
    cells = np.asarray(rows, np.int64) * dim + column[index].astype(np.int64)
    sums = np.bincount(cells, weights=sign[index], minlength=len(texts) * dim)
    vectors: NDArray[np.float64] = sums.astype(np.float64, copy=False).reshape(len(texts), dim)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors
