"""A data set of torch-geometric's that lies on disk: the file ``processed/data.pt`` that
``InMemoryDataset.save`` has written, with one graph for vertex classification.

The file is a pickle, and a pickle can execute anything. It is read with ``weights_only=True``,
which makes tensors, plain containers and torch-geometric's own data classes, and refuses all else.
torch-geometric's own loader is not used, because it tries again without that protection.
"""

import hashlib
import pickle
import re
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.files import check_regular
from testbed.gnn.datasets import PATH, SplitDataset
from testbed.gnn.graph import GraphData, cached, from_edges, random_split
from testbed.host import estimates

__all__ = ["PygSpec", "pyg_graph"]

FILE: Final = Path("processed") / "data.pt"
COPIES: Final = 3  # of the file's size, in memory: the file's tensors, ours, and their cache


class PygSpec(SplitDataset):
    """A graph that torch-geometric has processed: ``<path>/processed/data.pt``."""

    name: Literal["pyg"]
    path: str = Field(pattern=PATH, description="root folder of the data set, or the file itself")
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
    found = _load(path)
    x, edges = _array(path, found, "x", 2), _array(path, found, "edge_index", 2)
    y = _array(path, found, "y", 1)
    n = len(x)
    if x.dtype.kind != "f" or not np.isfinite(x).all():
        raise SpecError(f"{path}: x: must be finite numbers")
    if edges.dtype.kind not in "iu" or edges.shape[0] != 2 or not _within(edges, n):
        raise SpecError(f"{path}: edge_index: must be two rows of vertices from 0 to {n - 1}")
    if y.dtype.kind not in "iu" or len(y) != n or not _within(y, 1 << 20):
        raise SpecError(f"{path}: y: must be a label from 0 for each of {n} vertices")
    parts = [_mask(path, found, f"{name}_mask", n, spec.split) for name in ("train", "val", "test")]
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
    x = np.ascontiguousarray(x, np.float32)
    return GraphData("pyg", indptr, indices, x, labels, train, val, test, classes, facts)


def _load(path: Path) -> dict[str, Any]:
    """Return the tensors of the only graph in a file, by name."""
    import torch
    from torch_geometric.data import Data

    if not path.exists():
        raise SpecError(
            f"{path}: there is no such file: it is written when torch-geometric processes a data"
            " set; nothing is downloaded"
        )
    check_regular(path)
    if (size := path.stat().st_size) * COPIES > estimates.allowance():
        raise SpecError(f"{path}: has {size >> 20} MiB, too much for the memory of this machine")
    try:
        with torch.serialization.safe_globals([Data]):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split())
        named = re.search(r"GLOBAL (\S+)", reason)
        what = f" ({named[1]})" if named else ""
        raise SpecError(
            f"{path}: holds something other than tensors{what}, which reading it might execute:"
            " must be written by InMemoryDataset.save of torch-geometric 2.5 or later"
        ) from None
    except Exception as error:  # whatever torch raises for a damaged file
        reason = " ".join(str(error).split())[:200]
        raise SpecError(f"{path}: is damaged: {type(error).__name__}: {reason}") from None
    whole = isinstance(held, tuple) and len(held) >= 2 and isinstance(held[0], dict)
    if not whole or not all(isinstance(key, str) for key in held[0]):
        raise SpecError(f"{path}: must hold what InMemoryDataset.save of torch-geometric writes")
    if held[1]:
        raise SpecError(f"{path}: holds several graphs: must be one, with labels of its vertices")
    return dict(held[0])


def _array(path: Path, found: dict[str, Any], name: str, dims: int) -> NDArray[Any]:
    import torch

    value = found.get(name)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        has = ", ".join(sorted(found)) or "nothing"
        raise SpecError(f"{path}: {name}: must be a dense tensor; the graph has {has}")
    if name == "y" and value.dim() == 2 and value.shape[1] == 1:
        value = value[:, 0]
    if value.dim() != dims or not value.numel():
        raise SpecError(f"{path}: {name}: has shape {tuple(value.shape)}: must have {dims} axes")
    return value.numpy()


def _within(values: NDArray[Any], end: int) -> bool:
    return bool(values.min() >= 0 and values.max() < end)


def _mask(
    path: Path, found: dict[str, Any], name: str, n: int, split: int
) -> NDArray[np.int64] | None:
    import torch

    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, torch.Tensor) or value.dtype != torch.bool or len(value) != n:
        raise SpecError(f"{path}: {name}: must be one bool per vertex")
    if value.dim() == 2:
        if split >= value.shape[1]:
            raise SpecError(f"{path}: {name}: has {value.shape[1]} splits: split = {split}")
        value = value[:, split]
    return np.flatnonzero(value.numpy()).astype(np.int64)
