"""Full-graph training: the ranks together compute the same as one process, which computes the same
as torch-geometric.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from testbed.core.errors import TestbedError
from testbed.gnn.full.channel import Channel, Slot, plan_exchanges
from testbed.gnn.full.model import FullModel
from testbed.gnn.full.part import make_part, transposed
from testbed.gnn.full.train import FULL_PHASES, FullTrainer
from testbed.gnn.graph import GraphData
from testbed.gnn.models import parameter_count
from testbed.gnn.options import ModelSpec, TrainingSpec
from testbed.gnn.partition import make_owners
from testbed.gnn.weights import flatten
from tests.support.gnn.full.threads import train
from tests.support.gnn.graphs import Adjacency, directed
from tests.support.tiers import broad

MODELS = [
    pytest.param(
        ModelSpec(name="gcn", hidden=8), id="gcn"
    ),  # both layers multiply before they aggregate: 16 to 8 to 4
    pytest.param(
        ModelSpec(name="gcn", hidden=32), id="gcn-wide"
    ),  # the first layer aggregates first
    pytest.param(ModelSpec(name="gcn", hidden=8, layers=3), id="gcn-3"),
    pytest.param(ModelSpec(name="sage", hidden=8), id="sage"),
    pytest.param(ModelSpec(name="sage", hidden=32, layers=3), id="sage-wide-3"),
]


class Geometric(torch.nn.Module):
    """The same network made of torch-geometric's layers, in one process, with a full model's
    weights and masks.
    """

    def __init__(self, full: FullModel, spec: ModelSpec) -> None:
        from torch_geometric.nn import GCNConv, SAGEConv  # takes seconds

        super().__init__()
        self.full = full
        self.layers = torch.nn.ModuleList()
        for layer in full.layers:
            if spec.name == "gcn":
                outputs, inputs = layer.weight.T.shape
                made: Any = GCNConv(inputs, outputs)
                values = {"lin.weight": layer.weight.T, "bias": layer.bias}
            else:
                outputs, inputs = layer.own.weight.shape
                made = SAGEConv(inputs, outputs)
                values = {
                    "lin_l.weight": layer.others.weight,
                    "lin_l.bias": layer.own.bias,
                    "lin_r.weight": layer.own.weight,
                }
            made.load_state_dict({key: value.detach().clone() for key, value in values.items()})
            self.layers.append(made)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(
                self.full.dropouts[number](x if number == 0 else functional.relu(x)), edge_index
            )
        return x

    def gradient(self, spec: ModelSpec) -> torch.Tensor:
        """Return the gradients in the order of the full model's parameters."""
        parts = []
        for layer in self.layers:
            if spec.name == "gcn":
                parts += [layer.lin.weight.grad.T, layer.bias.grad]
            else:
                parts += [layer.lin_r.weight.grad, layer.lin_l.bias.grad, layer.lin_l.weight.grad]
        return torch.cat([part.reshape(-1) for part in parts])


def edge_index(graph: GraphData) -> torch.Tensor:
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
    return torch.from_numpy(np.stack([graph.indices.astype(np.int64), rows]))


def whole(graph: GraphData) -> Any:
    return make_part(graph, np.zeros(graph.num_vertices, np.int32), 0, 1)


@pytest.mark.parametrize("spec", MODELS)
def test_outputs_and_gradients_equal_torch_geometrics(graph: GraphData, spec: ModelSpec) -> None:
    full = FullModel(spec, whole(graph), graph.num_classes, 1)
    reference = Geometric(full, spec)
    flat = flatten(full.parameters())
    assert flat.numel() == parameter_count(spec, graph.feature_dim, graph.num_classes)
    x, y, rows = torch.from_numpy(graph.x), torch.from_numpy(graph.y), torch.from_numpy(graph.train)
    full.begin(3)
    logits, expected = full(x), reference(x, edge_index(graph))
    torch.testing.assert_close(logits, expected)
    functional.cross_entropy(logits[rows], y[rows]).backward()
    functional.cross_entropy(expected[rows], y[rows]).backward()
    torch.testing.assert_close(flat.grad, reference.gradient(spec), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("partitioner", broad(["metis", "hash"]))
@pytest.mark.parametrize("spec", broad(MODELS, 2))
def test_ranks_train_as_one_process(graph: GraphData, spec: ModelSpec, partitioner: str) -> None:
    training = TrainingSpec(epochs=50, learning_rate=0.01, weight_decay=5e-4)
    owners = make_owners(partitioner, graph.indptr, graph.indices, 3, 1)
    _, (alone,) = train(graph, np.zeros_like(owners), spec, training)
    _, ranks = train(graph, owners, spec, training)
    for single, results in zip(alone, zip(*ranks, strict=True), strict=True):
        assert len({result.digest for result in results}) == 1
        assert sum(result.share for result in results) == pytest.approx(1)
        assert sum(result.share * result.loss for result in results) == pytest.approx(
            single.loss, abs=1e-3
        )
        assert sum(result.val_total for result in results) == single.val_total == len(graph.val)
        assert sum(result.test_total for result in results) == single.test_total == len(graph.test)
    assert alone[-1].loss < 0.9 * alone[0].loss
    # Rounding may change one answer, but not more.
    assert abs(sum(results[-1].test_correct for results in ranks) - alone[-1].test_correct) <= 2


@pytest.mark.parametrize("spec", MODELS)
def test_summed_gradients_equal_those_of_a_single_process(
    graph: GraphData, spec: ModelSpec
) -> None:
    """After one step of plain gradient descent with rate 1, weights have changed by the
    gradient.
    """
    training = TrainingSpec(epochs=1, optimizer="sgd", learning_rate=1.0)
    owners = make_owners("hash", graph.indptr, graph.indices, 4, 2)
    (single,), _ = train(graph, np.zeros_like(owners), spec, training)
    ranks, _ = train(graph, owners, spec, training)
    for rank in ranks:
        torch.testing.assert_close(rank.gradient, single.gradient, rtol=1e-4, atol=1e-7)


@given(
    directed(least=4, most=16),
    st.sampled_from(["gcn", "sage"]),
    st.integers(1, 3),
    st.integers(0, 99),
)
@settings(max_examples=25)
def test_graphs_may_be_directed(adjacency: Adjacency, name: Any, world: int, seed: int) -> None:
    """Gradients go back through the transposed adjacency; ranks may own nothing, and vertices may
    have no neighbours.
    """
    indptr, indices = adjacency
    n = len(indptr) - 1
    rng = np.random.default_rng(seed)
    x, y, everyone = rng.standard_normal((n, 5), np.float32), rng.integers(0, 3, n), np.arange(n)
    graph = GraphData("directed", indptr, indices, x, y, everyone, everyone[:1], everyone[:2], 3)
    owners = np.append(rng.integers(0, world, n - 1), world - 1).astype(np.int32)
    spec = ModelSpec(name=name, hidden=4, dropout=0.3)
    training = TrainingSpec(epochs=1, optimizer="sgd", learning_rate=1.0)
    (single,), _ = train(graph, np.zeros_like(owners), spec, training)
    for rank in train(graph, owners, spec, training)[0]:
        torch.testing.assert_close(rank.gradient, single.gradient, rtol=1e-4, atol=1e-6)


@given(directed())
def test_transposed_twice_is_sorted(adjacency: Adjacency) -> None:
    indptr, indices = adjacency
    again_indptr, again = transposed(*transposed(indptr, indices))
    assert np.array_equal(again_indptr, indptr)
    rows = [sorted(indices[a:b].tolist()) for a, b in pairwise(indptr)]
    assert again.tolist() == [column for row in rows for column in row]


def test_a_part_may_have_a_cover(graph: GraphData) -> None:
    owners = make_owners("hash", graph.indptr, graph.indices, 2)
    rows, cover = (make_part(graph, owners, 0, 2, halo) for halo in ("rows", "cover"))
    assert cover.forward.num_halo < rows.forward.num_halo
    assert np.array_equal(cover.forward.owned, rows.forward.owned)
    assert cover.symmetric == rows.symmetric


def test_exchanges_that_a_model_takes() -> None:
    narrow = ModelSpec(name="gcn", hidden=64)
    assert plan_exchanges(narrow, 512, 58, cached=False) == {
        Slot(0, "forward"): 64,
        Slot(0, "backward"): 64,
        Slot(1, "forward"): 58,
        Slot(1, "backward"): 58,
    }
    wide = ModelSpec(name="sage", hidden=256)
    assert plan_exchanges(wide, 100, 300, cached=True) == {
        Slot(0, "forward"): 100,  # features need no gradients
        Slot(0, "evaluation"): 100,
        Slot(1, "forward"): 256,
        Slot(1, "backward"): 256,
        Slot(1, "evaluation"): 256,
    }


@pytest.mark.parametrize("cached", [False, True])
def test_parts_add_up_and_exchanges_are_counted(graph: GraphData, cached: bool) -> None:
    owners = make_owners("range", graph.indptr, graph.indices, 2)
    _, (first, _) = train(
        graph, owners, ModelSpec(name="gcn", hidden=8), TrainingSpec(epochs=2), cached=cached
    )
    for result in first:
        assert sum(result.times[part] for part in FULL_PHASES) == pytest.approx(
            result.times["epoch_time"]
        )
        assert (
            len(result.entered) == len(result.left) == 5
        )  # two layers, forward and backward, and all-reduce
        assert result.times["communication_time"] == pytest.approx(
            float(np.sum(result.left - result.entered))
        )
        # Evaluation is not counted, even if it needs exchanges of its own.
        assert result.counts == {
            "steps": 1,
            "packets": 40,
            "wire_bytes": 400,
            "retransmissions": 0,
            "redundant_bytes": 28,
        }


def test_weights_decay_only_in_a_gcns_first_layer(graph: GraphData) -> None:
    for name, layers in (("gcn", 1), ("sage", 2)):
        training = TrainingSpec(optimizer="sgd", learning_rate=1.0, weight_decay=0.5)
        spec = ModelSpec(name=name, hidden=8)  # type: ignore[arg-type]
        trainer = FullTrainer(whole(graph), graph.num_classes, spec, training, 1)
        before = trainer.weights.detach().clone()
        trainer.gradient.zero_()
        trainer.update()
        decayed = sum(
            p.numel() for layer in trainer.model.layers[:layers] for p in layer.parameters()
        )
        torch.testing.assert_close(trainer.weights[:decayed].detach(), before[:decayed] / 2)
        assert torch.equal(trainer.weights[decayed:].detach(), before[decayed:])


def test_diverging_loss_is_named(graph: GraphData) -> None:
    loud = GraphData(**{**vars(graph), "x": graph.x * np.float32(1e37)})
    training = TrainingSpec(optimizer="sgd", learning_rate=100.0)
    trainer = FullTrainer(
        whole(loud), graph.num_classes, ModelSpec(name="gcn", hidden=8), training, 1
    )
    with pytest.raises(
        TestbedError,
        match=r"loss of rank 0 is (nan|inf) in epoch 0: training\.learning_rate = 100\.0 may be",
    ):
        trainer.epoch(Channel(), 0)


def test_warming_up_changes_nothing(graph: GraphData) -> None:
    results = []
    for warm in (False, True):
        trainer = FullTrainer(
            whole(graph), graph.num_classes, ModelSpec(name="gcn"), TrainingSpec(), 1
        )
        if warm:
            trainer.warm_up()
        results.append(trainer.epoch(Channel(), 0))
    assert results[0].digest == results[1].digest
