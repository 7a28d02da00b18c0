"""The Planetoid citation graphs (Yang, Cohen, Salakhutdinov, ICML 2016) from a local folder.

Eight files make a graph (README of kimiyoung/planetoid): features and one-hot labels of the
vertices that are trained on (``x``, ``y``), of these and all others but the test set (``allx``,
``ally``), and of the test set (``tx``, ``ty``), whose numbers are the lines of ``test.index``; and
``graph``, the neighbours of each vertex. CiteSeer's test set leaves out vertices without edges:
they have no features and the first label, as in torch-geometric.
"""

import hashlib
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from testbed.core.errors import SpecError
from testbed.core.files import read_regular
from testbed.core.numbers import read_whole, shown
from testbed.gnn.datasets import Dataset, PathName
from testbed.gnn.graph import GraphData, cached, from_edges
from testbed.gnn.unpickle import RefusedPickle, unpickle
from testbed.host import estimates

__all__ = ["PlanetoidSpec", "planetoid_graph"]

PARTS: Final = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
LARGEST: Final = (
    256 << 20
)  # bytes of a file; the largest published one, PubMed's allx, has about 10 MB
LONGEST_INDEX: Final = 4 << 20  # bytes; PubMed's, for example, has 6 KB for 1,000 vertices
VALIDATION: Final = 500  # vertices, of the public split


class PlanetoidSpec(Dataset):
    """A citation graph in torch-geometric's layout: ``<path>/<graph>/raw/ind.<graph>.*``."""

    name: Literal["planetoid"]
    path: PathName
    graph: Literal["Cora", "CiteSeer", "PubMed"] = "Cora"

    def prepare(self) -> Path:
        """Read it every time, because the folder may have changed, and name it by its content; see
        `Dataset.prepare`.
        """
        graph = planetoid_graph(self)
        digest = hashlib.blake2b(digest_size=12)
        for array in (
            graph.indptr,
            graph.indices,
            graph.x,
            graph.y,
            graph.train,
            graph.val,
            graph.test,
        ):
            digest.update(array.tobytes())
        return cached(f"planetoid-{digest.hexdigest()}", lambda: graph)

    def resolve(self, base: Path) -> Self:
        """See `Dataset.resolve`."""
        place = Path(self.path)
        return (
            self
            if place.is_absolute()
            else self.model_copy(update={"path": str((base / place).resolve())})
        )


def planetoid_graph(spec: PlanetoidSpec) -> GraphData:
    """Read a graph with its public split and with features scaled to row sum 1, as in the Planetoid
    papers.

    :raises SpecError: Files are missing, and the text lists them; or one is not a regular file, is
        damaged, contains unexpected objects, or does not match the others; the text names it.
    """
    raw = Path(spec.path) / spec.graph / "raw"
    files = {part: raw / f"ind.{spec.graph.lower()}.{part}" for part in PARTS}
    if missing := [path.name for path in files.values() if not path.exists()]:
        raise SpecError(
            f'dataset.path = "{spec.path}": {raw} lacks {", ".join(missing)}: put them there from'
            " the folder data of kimiyoung/planetoid on GitHub; nothing is downloaded"
        )
    x, tx, allx = (_features(files[part]) for part in ("x", "tx", "allx"))
    y, ty, ally = (_labels(files[part]) for part in ("y", "ty", "ally"))
    n, source, target = _edges(files["graph"])
    test = _test_index(files["test.index"])

    for part, count, other, allowed, noun in (
        ("x", x.shape[1], "allx", allx.shape[1], "features"),
        ("tx", tx.shape[1], "allx", allx.shape[1], "features"),
        ("y", y.shape[1], "ally", ally.shape[1], "labels"),
        ("ty", ty.shape[1], "ally", ally.shape[1], "labels"),
        ("y", len(y), "x", x.shape[0], "rows"),
        ("ally", len(ally), "allx", allx.shape[0], "rows"),
        ("ty", len(ty), "tx", tx.shape[0], "rows"),
        ("test.index", len(test), "tx", tx.shape[0], "rows"),
    ):
        if count != allowed:
            raise SpecError(
                f"{files[part]}: has {count} {noun}: must be as many as {files[other].name} has,"
                f" {allowed}"
            )
    known = len(ally)
    if len(y) > known:
        raise SpecError(
            f"{files['y']}: has {len(y)} rows: must be at most as many as {files['ally'].name} has,"
            f" {known}"
        )
    if n < known:
        raise SpecError(
            f"{files['graph']}: has {n} vertices: must be at least those of {files['ally'].name},"
            f" {known}"
        )
    if len(np.unique(test)) < len(test) or not all(known <= vertex < n for vertex in test.tolist()):
        raise SpecError(
            f"{files['test.index']}: must name each vertex once, of {known} to {n - 1}, as"
            f" {files['graph'].name} has {n}"
        )

    widths = allx.shape[1], ally.shape[1]
    estimates.check(
        estimates.read(n, *widths),
        f"{files['allx'].parent}: {n} vertices, {widths[0]} features, {widths[1]} labels",
    )
    features = np.zeros((n, allx.shape[1]), np.float32)
    features[:known], features[test] = allx.toarray(), tx.toarray()
    features /= np.maximum(features.sum(1, keepdims=True), 1)
    one_hot = np.zeros((n, ally.shape[1]), ally.dtype)
    one_hot[:known], one_hot[test] = ally, ty
    indptr, indices = from_edges(source, target, n)
    return GraphData(
        name=f"planetoid/{spec.graph}",
        indptr=indptr,
        indices=indices,
        x=features,
        y=one_hot.argmax(1).astype(np.int64),
        train=np.arange(len(y), dtype=np.int64),
        val=np.arange(len(y), min(len(y) + VALIDATION, known), dtype=np.int64),
        test=np.sort(test),
        num_classes=ally.shape[1],
        facts={"edges": len(indices) // 2},
    )


def _unpickled(path: Path) -> Any:
    try:
        return unpickle(read_regular(path, LARGEST))
    except RefusedPickle as error:
        raise SpecError(f"{path}: {error}") from error


def _features(path: Path) -> csr_matrix:
    """Read a matrix of features: float32, one row per vertex."""
    matrix = _unpickled(path)
    if not isinstance(matrix, csr_matrix) or not matrix.shape[1]:
        raise SpecError(
            f"{path}: holds no CSR matrix: must be one with a row per vertex and a column per"
            " feature"
        )
    matrix = matrix.astype(np.float32)
    if not (np.isfinite(matrix.data).all() and (matrix.data >= 0).all()):
        raise SpecError(f"{path}: has features that are negative or not finite: must be at least 0")
    return matrix


def _labels(path: Path) -> NDArray[Any]:
    """Read one-hot labels: one row per vertex, one column per label."""
    labels = _unpickled(path)
    if (
        not isinstance(labels, np.ndarray)
        or labels.ndim != 2
        or not labels.shape[1]
        or labels.dtype.kind not in "iu"
    ):
        raise SpecError(
            f"{path}: holds no matrix of whole numbers: must be one with a row per vertex and a"
            " column per label"
        )
    return labels


def _edges(path: Path) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Read neighbours by vertex; return the number of vertices, and sources and
    targets of edges.
    """
    neighbours = _unpickled(path)
    if not isinstance(neighbours, dict) or not all(
        isinstance(row, list) for row in neighbours.values()
    ):
        raise SpecError(
            f"{path}: holds no dictionary of lists: must be one of each vertex's neighbours"
        )
    if len({id(row) for row in neighbours.values()}) < len(neighbours):
        # A file of a few kilobytes could otherwise have terabytes of edges.
        raise SpecError(
            f"{path}: names one list several times: must have a list of its own for each vertex"
        )
    targets = list(chain.from_iterable(neighbours.values()))
    # Checked before any is hashed, because hashing anything but a number may take arbitrarily long.
    strange = [each for each in chain(neighbours, targets) if type(each) is not int]
    vertices = set() if strange else {*neighbours, *targets}
    n = len(vertices)
    if strange := strange or sorted(vertices - set(range(n))):
        what = (
            shown(strange[0])
            if isinstance(strange[0], int | float | str)
            else type(strange[0]).__name__
        )
        raise SpecError(f"{path}: has a vertex {what}: must be all numbers from 0 up to the last")
    source = np.repeat(
        np.fromiter(neighbours, np.int64, len(neighbours)),
        [len(row) for row in neighbours.values()],
    )
    return n, source, np.fromiter(targets, np.int64, len(targets))


def _test_index(path: Path) -> NDArray[np.int64]:
    """Read the numbers of the test set's vertices, in the order of its features."""
    lines = read_regular(path, LONGEST_INDEX).decode("ascii", "replace").split()
    numbers = [read_whole(line) for line in lines]
    for line, number in zip(lines, numbers, strict=True):
        if number is None or not 0 <= number < 1 << 31:
            raise SpecError(f"{path}: {shown(line)}: must be numbers of vertices, one per line")
    return np.asarray(numbers, np.int64)
