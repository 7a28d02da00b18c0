"""`GraphData`: a labelled graph with features, and its folder form, which many processes map into
memory.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError, StorageError
from testbed.core.files import read_object, sync, sync_tree
from testbed.core.npy import map_array
from testbed.host.paths import cache_folder

__all__ = ["GraphData", "cached", "from_edges", "random_split"]

ARRAYS = ("indptr", "indices", "x", "y", "train", "val", "test")
ELSEWHERE = "set XDG_CACHE_HOME to a folder of your own on a disk with room"
LARGEST = 16 << 20  # bytes of graph.json
FORMAT = 1  # part of each cache entry's name: increment it when the meaning of stored data changes


@dataclass(frozen=True)
class GraphData:
    """A graph for vertex classification, as plain arrays.

    :param name: The data set's name.
    :param indptr: int64, shape (n + 1,): row `v` of the adjacency is ``indices[indptr[v]:indptr[v +
        1]]``.
    :param indices: int32, shape (m,): the neighbours whose messages a vertex aggregates.
    :param x: float32, shape (n, d): features.
    :param y: int64, shape (n,): labels, 0..num_classes-1.
    :param train: int64: the vertices of the training set, ascending; `val` and `test` likewise.
    :param num_classes: Number of labels.
    :param facts: What the parser counted, for the manifest.
    """

    name: str
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]
    num_classes: int
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of adjacency entries: an undirected edge counts twice."""
        return len(self.indices)

    @property
    def feature_dim(self) -> int:
        """Number of features per vertex."""
        return int(self.x.shape[1])

    def save(self, folder: Path) -> None:
        """Write the graph into a folder: one ``.npy`` per array, and ``graph.json``; atomic."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as made:
            for name in ARRAYS:
                np.save(Path(made) / f"{name}.npy", getattr(self, name))
            facts = {"name": self.name, "num_classes": self.num_classes, "facts": self.facts}
            (Path(made) / "graph.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
            os.chmod(made, 0o755)
            sync_tree(Path(made))
            try:
                os.rename(made, folder)
            except OSError:
                if (
                    not folder.is_dir()
                ):  # otherwise another process was first, with the same content
                    raise
            else:
                os.mkdir(made)  # TemporaryDirectory removes it
                sync(folder.parent)

    @classmethod
    def load(cls, folder: Path) -> "GraphData":
        """Map a saved graph into memory, read-only: processes on one box share its pages.

        :raises StorageError: It cannot be read, or is not whole.
        """
        try:
            about = read_object(folder / "graph.json", LARGEST)
            places = {name: folder / f"{name}.npy" for name in ARRAYS}
            arrays: dict[str, Any] = {
                name: map_array(place, str(place)) for name, place in places.items()
            }
            return cls(**about, **arrays)
        except (SpecError, TypeError) as error:
            raise StorageError(
                f"graph cache {folder}: cannot be read: {error}; remove the folder to make it again"
            ) from error


def from_edges(
    source: NDArray[np.integer[Any]], target: NDArray[np.integer[Any]], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Make the symmetric adjacency of a list of edges, without loops and without repeats.

    :param source: Shape (m,), vertices 0..n-1; `target` likewise.
    :returns: `indptr`, int64 of shape (n + 1,), and `indices`, int32, ascending within each row.
    """
    a, b = source.astype(np.int64), target.astype(np.int64)
    keys = np.unique(np.concatenate([a * n + b, b * n + a]))  # sorted by row, then by column
    rows, columns = np.divmod(keys, n)
    proper = rows != columns
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(rows[proper], minlength=n), out=indptr[1:])
    return indptr, columns[proper].astype(np.int32)


def random_split(
    n: int, train: float, val: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split vertices 0..n-1 at random into training, validation and test set, each ascending."""
    order = np.random.default_rng([seed, 0x5B117]).permutation(n)
    first, second = round(n * train), round(n * (train + val))
    parts = np.split(order, [first, second])
    return np.sort(parts[0]), np.sort(parts[1]), np.sort(parts[2])


def cached(key: str, make: Callable[[], GraphData], folder: Path | None = None) -> Path:
    """Return the folder that holds the graph named `key`; create it if it does not exist.

    :param key: Names everything that the graph depends on.
    :param folder: Where to keep it; without one, ``graphs`` in `testbed.host.paths.cache_folder`.
    :raises StorageError: The cache cannot be read or written.
    """
    place = (folder or cache_folder() / "graphs") / f"{key}-v{FORMAT}"
    try:
        if (place / "graph.json").exists():
            return place
    except OSError as error:
        raise StorageError(
            f"graph cache {place}: cannot be read: {error.strerror}; {ELSEWHERE}"
        ) from error
    graph = make()
    try:
        graph.save(place)
    except OSError as error:
        raise StorageError(
            f"graph cache {place}: cannot be written: {error.strerror}; {ELSEWHERE}"
        ) from error
    return place
