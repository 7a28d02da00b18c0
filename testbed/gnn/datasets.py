"""From a scenario's data set to the folder that all workers map into memory."""

import hashlib
from pathlib import Path

from testbed.gnn.debian import debian_graph
from testbed.gnn.graph import cached
from testbed.gnn.planetoid import planetoid_graph
from testbed.gnn.synthetic import synthetic_graph
from testbed.spec.scenario import DatasetSpec, DebianSpec, PlanetoidSpec

__all__ = ["prepare"]


def prepare(spec: DatasetSpec) -> Path:
    """Parse or draw the data set where that is not done yet; return its folder (`GraphData.load`).

    :raises SpecError: The data are not there or cannot be read.
    :raises StorageError: The cache cannot be read or written.
    """
    if isinstance(spec, DebianSpec):
        return debian_graph(spec)
    if isinstance(spec, PlanetoidSpec):
        # Read every time, since the folder may have changed, and named by what was read.
        graph = planetoid_graph(spec)
        digest = hashlib.blake2b(digest_size=12)
        for array in (graph.indptr, graph.indices, graph.x, graph.y, graph.train, graph.val, graph.test):
            digest.update(array.tobytes())
        return cached(f"planetoid-{digest.hexdigest()}", lambda: graph)
    key = hashlib.blake2b(spec.model_dump_json().encode(), digest_size=12).hexdigest()
    return cached(f"synthetic-{key}", lambda: synthetic_graph(spec))
