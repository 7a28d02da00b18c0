"""Training with a vertex cut: the ranks together compute what one process does."""

from pathlib import Path

import numpy as np
import pytest
import torch

from testbed.gnn.full.vertex_cut import read_masters, read_vertex_cut
from testbed.gnn.graph import GraphData
from testbed.gnn.options import ModelSpec, TrainingSpec
from testbed.gnn.streaming.edges import Adjacency
from testbed.gnn.streaming.options import PartitionOptions
from testbed.gnn.streaming.partition_folder import PartitionFolder
from testbed.gnn.streaming.partitioning import partition
from tests.support.gnn.full.threads import train


@pytest.mark.parametrize("policy", ["cvc", "svc", "hvc", "iec"])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_ranks_train_as_one_process_does(
    policy: str, name: str, graph: GraphData, tmp_path: Path
) -> None:
    folder = tmp_path / "cut"
    partition(Adjacency("graph", graph), PartitionOptions(policy=policy, parts=4), folder)
    model, training = ModelSpec(name=name, hidden=8), TrainingSpec(epochs=3)
    alone, by_one = train(graph, np.zeros(graph.num_vertices, np.int32), model, training)
    cuts = [read_vertex_cut(folder, rank) for rank in range(4)]
    together, by_four = train(graph, read_masters(folder), model, training, cuts=cuts)
    for epoch in range(3):
        loss = sum(results[epoch].loss * results[epoch].share for results in by_four)
        assert loss == pytest.approx(by_one[0][epoch].loss, abs=1e-5)
    for trainer in together:
        assert torch.allclose(trainer.weights, alone[0].weights, atol=1e-5)


def test_every_mirror_has_its_master(graph: GraphData, tmp_path: Path) -> None:
    """What is broadcast comes back multiplied by the number of a vertex's mirrors."""
    folder = tmp_path / "cut"
    partition(Adjacency("graph", graph), PartitionOptions(policy="cvc", parts=4), folder)
    opened = PartitionFolder(folder)
    mirrors = np.zeros(graph.num_vertices, int)
    for number in range(4):
        part = opened.part(number)
        mirrors[part.vertices[part.num_masters :]] += 1
    for rank in range(4):
        cut, part = read_vertex_cut(folder, rank), opened.part(rank)
        own = part.vertices[: part.num_masters]
        assert cut.num_proxies == len(part.vertices)
        assert np.diff(cut.reduce.indptr)[: len(own)].tolist() == mirrors[own].tolist()
        assert np.diff(cut.broadcast.indptr)[len(own) :].tolist() == [1] * (
            len(part.vertices) - len(own)
        )
        assert len(cut.reduce.local_indices) == len(cut.broadcast.local_indices) == 0
