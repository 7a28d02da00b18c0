"""The partitioners by name, and the cache of owners, which is kept with the graph."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError, StorageError
from testbed.core.files import sync
from testbed.core.npy import map_array
from testbed.core.registry import Registry
from testbed.gnn.partition.partitioner import Owners, Partitioner

__all__ = ["PARTITIONERS", "cached_owners", "make_owners"]

PARTITIONERS: Registry[type[Partitioner]] = Registry(
    "partitioner",
    "testbed.gnn.partition.partitioner:Partitioner",
    {
        "hash": "testbed.gnn.partition.hash:Hash",
        "range": "testbed.gnn.partition.range:Range",
        "metis": "testbed.gnn.partition.metis:Metis",
        "metis-balanced": "testbed.gnn.partition.metis:MetisBalanced",
        "fennel": "testbed.gnn.partition.fennel:Fennel",
    },
    group="testbed.partitioners",
)
FORMAT = 1  # part of each entry's name: increment it when a partitioner's decisions change


def make_owners(
    name: str,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    parts: int,
    seed: int = 0,
    batch: int | None = None,
    training: NDArray[np.integer[Any]] | None = None,
) -> Owners:
    """Partition a graph, its vertices in ascending order.

    :param indptr: int64, shape (n + 1,): the neighbours of v are ``indices[indptr[v]:indptr[v +
        1]]``.
    :param batch: Vertices at a time, if the partitioner supports that; None: all.
    :param training: The vertices that are trained on.
    :raises SpecError: There is no such partitioner, there are fewer vertices than parts, or a part
        has no vertex.
    """
    n = len(indptr) - 1
    partitioner = PARTITIONERS[name](n, parts, seed)
    partitioner.training = training
    size = batch if batch and partitioner.streams else n
    owners = np.empty(n, np.int32)
    for first in range(0, n, size):
        last = min(first + size, n)
        rows = indptr[first : last + 1]
        owners[first:last] = partitioner.assign(
            np.arange(first, last), rows - rows[0], indices[rows[0] : rows[-1]]
        )
    if empty := np.flatnonzero(np.bincount(owners, minlength=parts) == 0).tolist():
        where = f"partitioner {name}: part {empty[0]} of {parts} has no vertex of {n}"
        raise SpecError(f"{where}: use fewer parts, or range")
    return owners


def cached_owners(graph: Path, name: str, parts: int, seed: int = 0) -> Owners:
    """Return the owners of a cached graph's vertices, partitioning it first if necessary.

    :param graph: The graph's folder, which also caches the owners.
    :raises SpecError: As in `make_owners`.
    :raises StorageError: The folder cannot be read or written.
    """
    path = graph / f"owners-{name}-{parts}-seed{seed}-v{FORMAT}.npy"
    try:
        if path.exists():
            return _kept(path)
        indptr, indices, training = (
            _kept(graph / f"{each}.npy") for each in ("indptr", "indices", "train")
        )
        owners = make_owners(name, indptr, indices, parts, seed, training=training)
        with tempfile.TemporaryDirectory(dir=graph, prefix=f".{path.stem}-") as folder:
            np.save(made := Path(folder) / path.name, owners)
            sync(made)
            os.replace(made, path)
    except (OSError, EOFError, ValueError) as error:
        raise StorageError(
            f"owners {path}: cannot be read or written: {error}; remove the file to make it again"
        ) from error
    return owners


def _kept(path: Path) -> NDArray[Any]:
    try:
        return np.array(map_array(path, path.name))
    except SpecError as error:
        raise ValueError(str(error)) from error
