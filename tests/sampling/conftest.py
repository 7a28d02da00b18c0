"""A small graph."""

import pytest

from testbed.gnn.graph import GraphData
from testbed.gnn.synthetic import SyntheticSpec, synthetic_graph


@pytest.fixture
def graph() -> GraphData:
    return synthetic_graph(SyntheticSpec(name="synthetic", scale=8, classes=4, feature_dim=16))
