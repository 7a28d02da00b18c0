"""Data-parallel training: equal weights on all ranks, the gradients of a single process, seeds."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from testbed.core.errors import TestbedError
from testbed.gnn.graph import GraphData
from testbed.gnn.model import Sage
from testbed.gnn.models import parameter_count
from testbed.gnn.options import MinibatchSpec, SampledModelSpec
from testbed.gnn.result import EpochResult
from testbed.gnn.sampling import Sampler, key_of
from testbed.gnn.train import Trainer
from testbed.gnn.weights import flatten

MODEL = SampledModelSpec(hidden=16, fanout=(5, 3), dropout=0.0)


def train(
    graph: GraphData, thread_group: Any, world: int, training: MinibatchSpec, seed: int = 1
) -> list[list[EpochResult]]:
    group = thread_group(world)

    # Models are made one after another: torch's seed is global to the process, which ranks share
    # here.
    trainers = [Trainer(graph, MODEL, training, rank, world, seed) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        return list(
            pool.map(
                lambda t: [t.epoch(group.backend(t.rank), e) for e in range(training.epochs)],
                trainers,
            )
        )


def test_ranks_end_with_the_same_bits_and_learn(graph: GraphData, thread_group: Any) -> None:
    ranks = train(
        graph, thread_group, 3, MinibatchSpec(epochs=4, batch_size=16, learning_rate=0.01)
    )
    for epoch in zip(*ranks, strict=True):
        assert len({result.digest for result in epoch}) == 1
    losses = [np.mean([result.loss for result in epoch]) for epoch in zip(*ranks, strict=True)]
    assert losses[-1] < 0.7 * losses[0]


def test_one_step_is_the_step_of_the_joined_batch(graph: GraphData, thread_group: Any) -> None:
    """Compare the mean of the ranks' gradients with autograd on the mean of their losses in one
    plain model.
    """
    world = 4
    training = MinibatchSpec(epochs=1, steps=1, batch_size=8, optimizer="sgd", learning_rate=1.0)
    group = thread_group(world)
    trainers = [Trainer(graph, MODEL, training, r, world, 1) for r in range(world)]
    before = trainers[0].weights.detach().clone()

    torch.manual_seed(1)
    plain = Sage(MODEL, graph.feature_dim, graph.num_classes)
    losses = []
    for trainer in trainers:
        seeds = trainer.batches(0)[0]
        assert len(seeds) == 8
        blocks = Sampler(graph).blocks(seeds, MODEL.fanout, key_of(1, 1, 0))
        logits = plain(torch.from_numpy(graph.x[blocks[0].sources]), blocks)
        losses.append(functional.cross_entropy(logits, torch.from_numpy(graph.y[seeds])))
    torch.stack(losses).mean().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])  # type: ignore[union-attr]

    with ThreadPoolExecutor(world) as pool:
        list(
            pool.map(
                lambda t: [t.epoch(group.backend(t.rank), e) for e in range(training.epochs)],
                trainers,
            )
        )
    step = before - trainers[0].weights.detach()
    np.testing.assert_allclose(step.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)


def test_same_seed_same_run(graph: GraphData, thread_group: Any) -> None:
    training = MinibatchSpec(epochs=1, batch_size=32)
    first, again, other = (
        train(graph, thread_group, 1, training, seed)[0][0] for seed in (1, 1, 2)
    )
    assert (first.digest, first.loss) == (again.digest, again.loss)
    assert first.digest != other.digest


def test_parts_add_up_to_the_epoch(graph: GraphData, thread_group: Any) -> None:
    result = train(graph, thread_group, 1, MinibatchSpec(epochs=1, batch_size=32))[0][0]
    parts = (
        "sampling",
        "forward",
        "backward",
        "quantize",
        "communicate",
        "wait",
        "dequantize",
        "update",
        "other",
    )
    assert sum(result.times[part] for part in parts) == pytest.approx(result.times["epoch_time"])
    steps = -(-len(graph.train) // 32)
    assert result.counts == {
        "steps": steps,
        "packets": 2 * steps,
        "wire_bytes": 3 * steps,
        "retransmissions": 0,
    }
    assert (result.left >= result.entered).all()


def test_more_ranks_than_batches_fill(graph: GraphData, thread_group: Any) -> None:
    ranks = train(graph, thread_group, 4, MinibatchSpec(epochs=1, batch_size=1000))
    assert [rank[0].counts["steps"] for rank in ranks] == [1, 1, 1, 1]


def test_diverging_loss_is_named(graph: GraphData, thread_group: Any) -> None:
    training = MinibatchSpec(epochs=40, batch_size=16, optimizer="sgd", learning_rate=100.0)
    loud = GraphData(**{**vars(graph), "x": graph.x * np.float32(1e18)})
    with pytest.raises(TestbedError, match=r"loss of rank 0 is (nan|inf).*learning_rate = 100"):
        train(loud, thread_group, 1, training)


def test_inference_equals_forward_on_whole_neighbourhoods(graph: GraphData) -> None:
    torch.manual_seed(0)
    model = Sage(MODEL, graph.feature_dim, graph.num_classes).eval()
    sampler = Sampler(graph)
    inner = sampler.block(np.arange(20), None)
    outer = sampler.block(inner.sources, None)
    with torch.no_grad():
        expected = model(torch.from_numpy(graph.x[outer.sources]), [outer, inner])
    torch.testing.assert_close(model.infer(sampler, batch=37)[:20], expected)


def test_flat_vector_is_the_model(graph: GraphData) -> None:
    model = Sage(MODEL, graph.feature_dim, graph.num_classes)
    flat = flatten(model.parameters())
    assert flat.numel() == parameter_count(MODEL, graph.feature_dim, graph.num_classes)
    with torch.no_grad():
        flat.fill_(0.5)
    assert all((parameter == 0.5).all() for parameter in model.parameters())
    blocks = Sampler(graph).blocks(graph.train[:4], MODEL.fanout, 0)
    model(torch.from_numpy(graph.x[blocks[0].sources]), blocks).sum().backward()
    assert flat.grad is not None
    assert flat.grad.abs().sum() > 0
