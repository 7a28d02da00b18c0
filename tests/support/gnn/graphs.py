"""Small graphs for hypothesis, symmetric or not."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.gnn.graph import from_edges

__all__ = ["Adjacency", "adjacencies", "directed"]

Adjacency = tuple[NDArray[np.int64], NDArray[np.int32]]
"""`indptr` and `indices`."""


@st.composite
def adjacencies(draw: Any, least: int = 1, most: int = 24) -> Adjacency:
    """Symmetric graphs without loops and repeats; vertices without an edge are among them."""
    n = draw(st.integers(least, most))
    ends = st.integers(0, n - 1)
    pairs = np.array(draw(st.lists(st.tuples(ends, ends), max_size=3 * n)), np.int64).reshape(-1, 2)
    return from_edges(pairs[:, 0], pairs[:, 1], n)


@st.composite
def directed(draw: Any, least: int = 1, most: int = 24) -> Adjacency:
    """Graphs in which an edge need not go both ways; loops and repeats are among them."""
    n = draw(st.integers(least, most))
    rows = draw(st.lists(st.lists(st.integers(0, n - 1), max_size=6), min_size=n, max_size=n))
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return indptr, np.array([column for row in rows for column in row], np.int32)
