"""What ranks need is imported once, before they are forked."""

import subprocess
import sys

import pytest

LOOK = """
import importlib, sys
from testbed.gnn.synthetic import synthetic_graph
from testbed.scenario import parse_scenario
scenario = parse_scenario({"scenario": {"name": "s"}, **TABLES})
for module in scenario.workload.begin(scenario).modules:
    importlib.import_module(module)
before = set(sys.modules)
MAKE
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} & {"torch", "testbed"}))
"""
GRAPH = "graph = synthetic_graph(scenario.dataset)\n"
DATA = '"dataset": {"name": "synthetic", "scale": 6}'


@pytest.mark.deep
@pytest.mark.parametrize(
    ("tables", "make"),
    [
        (
            f'{{{DATA}, "model": {{"fanout": [2, 2]}}}}',
            f"from testbed.gnn.train import Trainer\n{GRAPH}"
            "Trainer(graph, scenario.model, scenario.training, 0, 2, 1).warm_up()",
        ),
        (
            f'{{{DATA}, "exchange": {{}}}}',
            "import numpy as np\nfrom testbed.gnn.full.part import make_part\n"
            f"from testbed.gnn.full.train import FullTrainer\n{GRAPH}"
            "part = make_part(graph, np.zeros(graph.num_vertices, np.int32), 0, 1)\n"
            "FullTrainer(part, 8, scenario.model, scenario.training, 1).warm_up()",
        ),
        (
            '{"module": {"task": "testbed.workloads.module.blobs:Blobs"}}',
            "from testbed.workloads.module.train import ModuleTrainer\n"
            "ModuleTrainer(scenario.module, scenario.training, 0, 2, 1).warm_up()",
        ),
    ],
    ids=["data-parallel", "full-graph", "module"],
)
def test_a_rank_imports_nothing_that_takes_long(tables: str, make: str) -> None:
    """Otherwise all ranks would, each for seconds and at the same time."""
    source = LOOK.replace("TABLES", tables).replace("MAKE", make)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
