"""The Planetoid citation graphs (Yang, Cohen, Salakhutdinov, ICML 2016) from a local folder."""

import io
import shutil
import tempfile
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np

from testbed.errors import SpecError
from testbed.gnn.graph import GraphData, from_edges
from testbed.spec.scenario import PlanetoidSpec

__all__ = ["planetoid_graph"]

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def planetoid_graph(spec: PlanetoidSpec) -> GraphData:
    """Read a graph with its public split and with features scaled to row sum 1, as in the Planetoid papers.

    :raises SpecError: Files are missing; the text lists them.
    """
    raw = Path(spec.path) / spec.graph / "raw"
    missing = [name for part in PARTS if not (raw / (name := f"ind.{spec.graph.lower()}.{part}")).is_file()]
    if missing:
        raise SpecError(
            f'dataset.path = "{spec.path}": {raw} lacks {", ".join(missing)}: '
            "put them there from the folder data of kimiyoung/planetoid on GitHub; nothing is downloaded"
        )
    # Imported late: they take seconds, and only this data set needs them here.
    from torch_geometric.datasets import Planetoid
    from torch_geometric.transforms import NormalizeFeatures

    # torch-geometric writes what it has processed beside `raw`, where this user may not be allowed to write.
    # It also tells stderr that it does so.
    with redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory(prefix="testbed-planetoid-") as folder:
        shutil.copytree(raw, Path(folder) / spec.graph / "raw", copy_function=shutil.copyfile)
        dataset = Planetoid(folder, spec.graph, split="public", transform=NormalizeFeatures())
        data = dataset[0]
        classes = int(dataset.num_classes)
    source, target = data.edge_index.numpy()
    indptr, indices = from_edges(source, target, int(data.num_nodes))
    train, val, test = (
        np.flatnonzero(mask.numpy()).astype(np.int64) for mask in (data.train_mask, data.val_mask, data.test_mask)
    )
    return GraphData(
        name=f"planetoid/{spec.graph}",
        indptr=indptr,
        indices=indices,
        x=data.x.numpy().astype(np.float32),
        y=data.y.numpy().astype(np.int64),
        train=train,
        val=val,
        test=test,
        num_classes=classes,
        facts={"edges": len(indices) // 2},
    )
