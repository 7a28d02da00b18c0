"""A labelled R-MAT graph whose features follow its labels.

R-MAT (Chakrabarti, Zhan and Faloutsos, SDM 2004): an edge is drawn by choosing a quadrant of the
adjacency matrix once per bit, with probabilities a, b, c, d, so that degrees are skewed and
communities are nested. Labels are the communities at a coarse level (the leading bits of a vertex's
number), so that neighbours tend to share them and a graph network has something to learn.
"""

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.gnn.datasets import SplitDataset
from testbed.gnn.graph import GraphData, cached, from_edges, random_split
from testbed.host import estimates

__all__ = ["SyntheticSpec", "crowding", "rmat_edges", "synthetic_graph"]

QUADRANTS = (0.57, 0.19, 0.19, 0.05)  # a, b, c, d of the Graph500 benchmark


class SyntheticSpec(SplitDataset):
    """A labelled R-MAT graph, drawn from `seed`."""

    name: Literal["synthetic"]
    scale: int = Field(default=12, ge=4, le=22, description="log2 of the number of vertices")
    edge_factor: int = Field(default=8, ge=1, le=64, description="edges drawn per vertex")
    classes: int = Field(default=8, ge=2, le=1024)
    feature_dim: int = Field(default=64, ge=1, le=8192)
    noise: float = Field(
        default=1.0, ge=0, le=100, description="standard deviation of the features' noise"
    )

    def prepare(self) -> Path:
        """See `Dataset.prepare`."""
        key = hashlib.blake2b(self.model_dump_json().encode(), digest_size=12).hexdigest()
        return cached(f"synthetic-{key}", lambda: synthetic_graph(self))

    @property
    def keys(self) -> tuple[str, ...]:
        """See `Dataset.keys`."""
        return ("scale", "edge_factor", "feature_dim")

    def estimate(self) -> tuple[estimates.Graph, int]:
        """See `Dataset.estimate`."""
        n = 1 << self.scale
        entries = min(2 * self.edge_factor * n, n * n)
        crowd = min(entries, round(entries * crowding(self.scale)))
        return estimates.Graph(n, entries, self.feature_dim, crowd), self.classes


def rmat_edges(
    scale: int, edges: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw edges of an R-MAT graph with ``2**scale`` vertices; loops and repeats are left in.

    :param edges: How many to draw.
    :returns: Sources and targets, int64, each of shape (edges,).
    """
    source = np.zeros(edges, np.int64)
    target = np.zeros(edges, np.int64)
    bounds = np.cumsum(QUADRANTS)[:-1]
    for _ in range(scale):
        quadrant = np.searchsorted(bounds, rng.random(edges), side="right")
        source = source << 1 | quadrant >> 1
        target = target << 1 | quadrant & 1
    return source, target


def crowding(scale: int) -> float:
    """Return the share of edges that the first `estimates.EVALUATION_BATCH` vertices have in the
    mean, which have most.
    """
    leading_bits = max(0, scale - (estimates.EVALUATION_BATCH - 1).bit_length())
    return (QUADRANTS[0] + QUADRANTS[1]) ** leading_bits


def synthetic_graph(spec: SyntheticSpec) -> GraphData:
    """Draw the graph that a scenario describes; the same spec gives the same graph.

    :raises SpecError: There is not enough memory for the graph.
    """
    keys = ", ".join(f"dataset.{key} = {getattr(spec, key)}" for key in spec.keys)
    estimates.check(
        estimates.drawn(1 << spec.scale, spec.edge_factor << spec.scale, spec.feature_dim), keys
    )
    rng = np.random.default_rng([spec.seed, 0x12A7])
    n = 1 << spec.scale
    indptr, indices = from_edges(*rmat_edges(spec.scale, n * spec.edge_factor, rng), n)
    y = np.arange(n, dtype=np.int64) * spec.classes // n
    centres = rng.standard_normal((spec.classes, spec.feature_dim), np.float32)
    x = rng.standard_normal((n, spec.feature_dim), np.float32)
    x *= np.float32(spec.noise)
    for label, centre in enumerate(
        centres
    ):  # not centres[y], which would need as much memory again
        x[np.searchsorted(y, label) : np.searchsorted(y, label + 1)] += centre
    train, val, test = random_split(n, spec.train_fraction, spec.val_fraction, spec.seed)
    facts = {"edges": len(indices) // 2}
    return GraphData("synthetic", indptr, indices, x, y, train, val, test, spec.classes, facts)
