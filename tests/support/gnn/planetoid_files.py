"""A small graph in the files of the Planetoid data sets."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from testbed.gnn.planetoid import PlanetoidSpec
from tests.support.gnn import python2

__all__ = ["FEATURES", "GRAPH", "LABELS", "TESTED", "write"]

# Eight vertices: 0 and 1 are trained on, 2 to 4 known, 5 and 7 tested, in the order 7, 5; 6 has no
# edges and no features.
FEATURES = np.array([[1, 1, 0], [0, 2, 0], [0, 0, 4], [1, 0, 0], [0, 0, 0]], np.float32)
TESTED = np.array([[0, 1, 3], [5, 0, 0]], np.float32)
LABELS = np.eye(2, dtype=np.int32)[[1, 0, 1, 0, 0]]
GRAPH = {0: [1, 1, 0, 7], 1: [0], 2: [3], 3: [2, 5], 4: [], 5: [3], 6: [], 7: [0]}


def parts() -> dict[str, Any]:
    return {
        "x": csr_matrix(FEATURES[:2]),
        "tx": csr_matrix(TESTED),
        "allx": csr_matrix(FEATURES),
        "y": LABELS[:2],
        "ty": np.array([[0, 1], [0, 1]], np.int32),
        "ally": LABELS,
        "graph": defaultdict(list, GRAPH),
        "test.index": b"7\n5\n",
    }


def write(root: Path, **changed: Any) -> PlanetoidSpec:
    """Write a graph's files; bytes are written as they are, all else as Python 2 pickled it."""
    raw = root / "CiteSeer" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, value in {**parts(), **changed}.items():
        (raw / f"ind.citeseer.{part}").write_bytes(
            value if isinstance(value, bytes) else python2.dumps(value)
        )
    return PlanetoidSpec(name="planetoid", path=str(root), graph="CiteSeer")
