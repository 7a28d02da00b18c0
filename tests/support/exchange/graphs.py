"""Partitioned graphs for hypothesis."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from testbed.testing.graphs import Partitioned
from tests.support.gnn.graphs import directed

__all__ = ["partitioned"]


@st.composite
def partitioned(draw: Any, ranks: int = 5) -> Partitioned:
    """Small graphs with loops, repeats and edges of one way, dealt out at will."""
    indptr, indices = draw(directed())
    world = draw(st.integers(1, ranks))
    n = len(indptr) - 1
    owner = draw(st.lists(st.integers(0, world - 1), min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(-64, 64), min_size=len(indices), max_size=len(indices)))
    return Partitioned(
        indptr, indices, np.array(weights, np.float32) / 16, np.array(owner, np.int32), world
    )
