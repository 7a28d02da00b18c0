"""A data set of torch-geometric's that lies on disk: the file ``processed/data.pt`` that
``InMemoryDataset.save`` has written, with one graph for vertex classification.

The file is a pickle, and a pickle can execute anything, so neither torch nor torch-geometric reads
it, but `testbed.gnn.torch_file`.
"""

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.files import check_regular
from testbed.core.numbers import cut, shown
from testbed.gnn.datasets import PathName, SplitDataset
from testbed.gnn.graph import GraphData, cached, from_edges, random_split
from testbed.gnn.torch_file import Tensor, TorchFile
from testbed.gnn.unpickle import Foreign
from testbed.host import estimates

__all__ = ["PygSpec", "pyg_graph"]

FILE: Final = Path("processed") / "data.pt"


class PygSpec(SplitDataset):
    """A graph that torch-geometric has processed: ``<path>/processed/data.pt``."""

    name: Literal["pyg"]
    path: PathName = Field(description="root folder of the data set, or the file itself")
    split: int = Field(
        default=0, ge=0, le=1000, description="column of the masks, where there are several splits"
    )

    def prepare(self) -> Path:
        """Read it every time, because the file may have changed, and name it by its content; see
        `Dataset.prepare`.
        """
        graph = pyg_graph(self)
        digest = hashlib.blake2b(digest_size=12)
        arrays = (graph.indptr, graph.indices, graph.x, graph.y)
        for array in (*arrays, graph.train, graph.val, graph.test):
            digest.update(array.tobytes())
        return cached(f"pyg-{digest.hexdigest()}", lambda: graph)

    def resolve(self, base: Path) -> Self:
        """See `Dataset.resolve`."""
        return self.model_copy(update={"path": str((base / self.path).resolve())})


def pyg_graph(spec: PygSpec) -> GraphData:
    """Read a graph. Edges become undirected, as for all data sets; without masks, vertices are
    split at random.

    :raises SpecError: There is no such file, or it holds something else; the text says what.
    """
    path = Path(spec.path)
    if path.is_dir():
        path = path / FILE
    file, found = _load(path)
    estimates.check(_needed(found), f"{path}: its tensors")
    x, edges = _array(path, file, found, "x", 2), _array(path, file, found, "edge_index", 2)
    y = _array(path, file, found, "y", 1)
    n = len(x)
    if x.dtype.kind != "f":
        raise SpecError(f"{path}: x: must be finite numbers of floating point, not {x.dtype}")
    with np.errstate(over="ignore"):  # a double that is too large becomes infinite
        x = np.ascontiguousarray(x, np.float32)
    if not np.isfinite(x).all():
        raise SpecError(f"{path}: x: must be finite numbers, as float32")
    if edges.dtype.kind not in "iu" or edges.shape[0] != 2 or not _within(edges, n):
        raise SpecError(f"{path}: edge_index: must be two rows of vertices from 0 to {n - 1}")
    if y.dtype.kind not in "iu" or len(y) != n or not _within(y, 1 << 20):
        raise SpecError(f"{path}: y: must be a label from 0 for each of {n} vertices")
    parts = [
        _mask(path, file, found, f"{name}_mask", n, spec.split) for name in ("train", "val", "test")
    ]
    chosen = [part for part in parts if part is not None]
    if chosen and len(chosen) < 3:
        raise SpecError(f"{path}: must have train_mask, val_mask and test_mask, or none of them")
    train, val, test = chosen or random_split(n, spec.train_fraction, spec.val_fraction, spec.seed)
    if not len(train):
        raise SpecError(f"{path}: train_mask: must name at least one vertex")
    indptr, indices = from_edges(edges[0], edges[1], n)
    facts = {"edges": len(indices) // 2}
    labels = y.astype(np.int64)
    classes = int(labels.max()) + 1
    return GraphData("pyg", indptr, indices, x, labels, train, val, test, classes, facts)


def _load(path: Path) -> tuple[TorchFile, dict[str, Any]]:
    """Return a file, and the only graph in it: tensors by name."""
    if not path.exists():
        raise SpecError(
            f"{path}: there is no such file: it is written when torch-geometric processes a data"
            " set; nothing is downloaded"
        )
    check_regular(path)
    file = TorchFile(path)
    match file.content:
        case (dict() as graph, slices, *_) if all(isinstance(key, str) for key in graph):
            if slices is not None and slices != {}:
                raise SpecError(
                    f"{path}: holds several graphs: must be one, with labels of its vertices"
                )
            return file, graph
    raise SpecError(f"{path}: must hold what InMemoryDataset.save of torch-geometric writes")


def _array(
    path: Path, file: TorchFile, found: dict[str, Any], name: str, dims: int
) -> NDArray[Any]:
    value = found.get(name)
    if not isinstance(value, Tensor):
        has = ", ".join(sorted(found)) or "nothing"
        what = f" it is {cut(value.name)};" if isinstance(value, Foreign) else ""
        raise SpecError(f"{path}: {name}: must be a dense tensor;{what} the graph has {cut(has)}")
    shape = value.shape
    if name == "y" and len(shape) == 2 and shape[1] == 1:
        value = replace(value, shape=shape[:1], strides=value.strides[:1])
    if len(value.shape) != dims or not math.prod(shape):
        raise SpecError(
            f"{path}: {name}: has shape {shown(shape)}: must have {dims} axes, none of them empty"
        )
    return file.array(value, name)


def _needed(found: dict[str, Any]) -> dict[str, int]:
    """Estimate the memory that a graph takes, by the shapes of its tensors."""
    shapes = {name: each.shape for name, each in found.items() if isinstance(each, Tensor)}
    vertices, *_ = (*shapes.get("x", ()), 0)
    elements = math.prod(shapes.get("x", ()))
    need = estimates.drawn(vertices, math.prod(shapes.get("edge_index", ())) // 2, 0)
    return need | {"features": 3 * estimates.FLOAT * elements, "vertices": 64 * vertices}


def _within(values: NDArray[Any], end: int) -> bool:
    return bool(values.min() >= 0 and values.max() < end)


def _mask(
    path: Path, file: TorchFile, found: dict[str, Any], name: str, n: int, split: int
) -> NDArray[np.int64] | None:
    value = found.get(name)
    if value is None:
        return None
    if (
        not isinstance(value, Tensor)
        or value.item != "?"
        or len(value.shape) not in (1, 2)
        or value.shape[0] != n
    ):
        raise SpecError(
            f"{path}: {name}: must be one bool per vertex, or a column of these for each split"
        )
    mask = file.array(value, name)
    if mask.ndim == 2:
        if split >= mask.shape[1]:
            raise SpecError(f"{path}: {name}: has {mask.shape[1]} splits: split = {split}")
        mask = mask[:, split]
    return np.flatnonzero(mask).astype(np.int64)
