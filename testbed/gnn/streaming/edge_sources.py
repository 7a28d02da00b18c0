"""What ``testbed partition`` takes as a graph: a file of edges, or a name."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.core.files import check_regular
from testbed.core.npy import map_array
from testbed.core.numbers import read_whole, shown
from testbed.gnn.datasets import DATASETS
from testbed.gnn.graph import GraphData
from testbed.gnn.streaming.edge_files import CsvEdges, NpzEdges, ParquetEdges
from testbed.gnn.streaming.edges import Adjacency, Edges, Rmat

__all__ = ["FILES", "NAMES", "open_edges"]

NAMES = ("debian", "debian-files", "synthetic")
"""Data sets that need no files of the user's."""

FILES: dict[str, type[CsvEdges] | type[NpzEdges] | type[ParquetEdges]] = {
    ".parquet": ParquetEdges,
    ".csv": CsvEdges,
    ".tsv": CsvEdges,
    ".txt": CsvEdges,
    ".npz": NpzEdges,
}


def open_edges(graph: str, seed: int = 1, features: Path | None = None) -> Edges:
    """Open a graph as a stream of edges.

    :param graph: A file; one of `NAMES`, with the data set's default options; a folder
        of the cache of data sets; or ``rmat:SCALE``.
    :param seed: Of an R-MAT graph.
    :param features: An ``.npy`` file with a row of floats per vertex, mapped into memory.
    :raises SpecError: There is no such graph, or it cannot be read.
    :raises StorageError: The cache of data sets cannot be read or written.
    """
    edges = _open(graph, seed)
    if features is not None:
        edges.features = _features(features)
    return edges


def _open(graph: str, seed: int) -> Edges:
    kind, _, scale = graph.partition(":")
    if kind == "rmat":
        number = read_whole(scale)
        if number is None:
            raise SpecError(f"GRAPH: {shown(graph)}: must be rmat:SCALE, such as rmat:20")
        return Rmat(number, seed)
    if graph in NAMES:
        return Adjacency(graph, GraphData.load(DATASETS[graph](name=graph).prepare()))
    path = Path(graph)
    if (path / "graph.json").is_file():
        return Adjacency(graph, GraphData.load(path))
    if path.suffix not in FILES:
        raise SpecError(
            f"GRAPH: {shown(graph)}: must be {', '.join(NAMES)}, rmat:SCALE, or a file"
            f" ({', '.join(FILES)})"
        )
    check_regular(path)
    try:
        return FILES[path.suffix](path)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error


def _features(path: Path) -> NDArray[Any]:
    found = map_array(path, f"--features: {path}")
    if found.ndim != 2 or found.dtype.kind != "f":
        raise SpecError(f"--features: {path}: must be a matrix of floats, a row per vertex")
    return found
