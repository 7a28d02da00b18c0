"""Planetoid graphs, from a folder beside the checkout or the one that TESTBED_PLANETOID names."""

import os
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import SpecError
from testbed.gnn.planetoid import planetoid_graph
from testbed.spec.scenario import PlanetoidSpec

FOLDER = Path(os.environ.get("TESTBED_PLANETOID", Path(__file__).parents[3] / "shared" / "data" / "planetoid"))


def test_missing_files_are_named(tmp_path: Path) -> None:
    raw = tmp_path / "Cora" / "raw"
    raw.mkdir(parents=True)
    (raw / "ind.cora.x").write_bytes(b"")
    with pytest.raises(SpecError, match=r"lacks ind\.cora\.tx, .*ind\.cora\.test\.index: .*nothing is downloaded"):
        planetoid_graph(PlanetoidSpec(name="planetoid", path=str(tmp_path)))


@pytest.mark.skipif(
    not (FOLDER / "Cora" / "raw").is_dir(),
    reason=f"no Cora in {FOLDER}: set TESTBED_PLANETOID to a folder in torch-geometric's layout",
)
def test_cora_has_its_published_shape() -> None:
    graph = planetoid_graph(PlanetoidSpec(name="planetoid", path=str(FOLDER)))
    assert (graph.num_vertices, graph.num_classes, graph.feature_dim) == (2708, 7, 1433)
    assert graph.num_edges == 10556
    assert [len(part) for part in (graph.train, graph.val, graph.test)] == [140, 500, 1000]
    assert np.bincount(graph.y[graph.train]).tolist() == [20] * 7
    np.testing.assert_allclose(graph.x.sum(1), 1, rtol=1e-5)
