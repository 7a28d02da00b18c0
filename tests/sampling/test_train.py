"""Sampled training of a distributed graph: the way in which minibatches are prepared changes
nothing, and neither does it matter that ranks have parts of the graph alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from testbed.core.errors import SpecError, TestbedError
from testbed.gnn.graph import GraphData
from testbed.gnn.model import Sage
from testbed.gnn.options import MinibatchSpec
from testbed.gnn.result import EpochResult
from testbed.gnn.sampling import Sampler, key_of
from testbed.results import load_run
from testbed.run import run_scenario
from testbed.sampling.groups import PARTS
from testbed.sampling.options import DistributedModelSpec, SamplingTerms
from testbed.sampling.registry import WAYS
from testbed.sampling.train import SampledTrainer
from testbed.scenario import Scenario, parse_scenario
from tests.support.gnn.parts import owners_of, ranks
from tests.support.workloads.threads import on_ranks

CACHED: dict[str, Any] = {"cache": 1, "horizon": 2}

# No dropout: ranks are threads here, and the seed of torch is the process's.
MODEL = DistributedModelSpec(hidden=16, layers=2, fanout=(5, 3), dropout=0.0)
TRAINING = MinibatchSpec(batch_size=8, epochs=2, learning_rate=0.02)


def trained(
    graph: GraphData,
    way: str,
    world: int,
    owners: np.ndarray,
    model: DistributedModelSpec = MODEL,
    **terms: Any,
) -> list[list[EpochResult]]:
    """Each rank's epochs."""
    share = int(np.bincount(owners[graph.train], minlength=world).min())
    every = np.arange(graph.num_vertices, dtype=np.int32)
    halves = model.precision == "bfloat16"
    with ranks(graph, owners, world, halves=halves) as found:
        made = []
        for peers in found:  # one after the other: torch's seed is the process's
            made.append(
                SampledTrainer(
                    *(peers.part, graph.num_classes, share, WAYS[way], SamplingTerms(**terms)),
                    *(model, TRAINING, 1, every[owners != peers.part.rank]),
                )
            )
            made[-1].warm_up()
            made[-1].join(peers)

        def work(backend: Any, rank: int) -> list[EpochResult]:
            return [made[rank].epoch(backend, epoch) for epoch in range(2)]

        return on_ranks(world, work, made[0].weights.numel())


@pytest.mark.parametrize("world", [1, 3])
def test_all_ways_train_the_same_to_the_last_bit(graph: GraphData, world: int) -> None:
    owners = owners_of(graph, world)
    first = trained(graph, "rpc", world, owners)
    assert len({result.digest for rank in first for result in rank[1:]}) == 1
    others: list[tuple[str, dict[str, Any]]] = [
        *(("rpc-ahead", {}), ("katana", {}), ("katana", {"group": 2}), ("rpc-cached", CACHED)),
        *(("katana", CACHED | {"group": 1}), ("katana", CACHED | {"policy": "inclusion"})),
    ]
    for way, terms in others:
        other = trained(graph, way, world, owners, **terms)
        for mine, theirs in zip(first, other, strict=True):
            for one, two in zip(mine, theirs, strict=True):
                assert (one.digest, one.loss) == (two.digest, two.loss)
                assert (one.val_correct, one.val_total) == (two.val_correct, two.val_total)
                assert one.counts["steps"] == two.counts["steps"] > 2


def test_a_step_is_that_of_a_process_with_the_whole_graph(graph: GraphData) -> None:
    """The mean of the ranks' losses, over the same seeds, in one plain model."""
    world, owners = 2, owners_of(graph, 2)
    share = int(np.bincount(owners[graph.train], minlength=world).min())
    with ranks(graph, owners, world) as found:
        trainers = []
        for peers in found:
            trainers.append(
                SampledTrainer(
                    *(peers.part, graph.num_classes, share, WAYS["katana"], SamplingTerms()),
                    *(MODEL, TRAINING, 1),
                )
            )
            trainers[-1].join(peers)
        torch.manual_seed(1)
        plain = Sage(MODEL, graph.feature_dim, graph.num_classes)
        for trainer in trainers:
            seeds = trainer.batches(0)[0]
            blocks = Sampler(graph).blocks(seeds, MODEL.fanout, key_of(1, 1, 0))
            logits = plain(torch.from_numpy(graph.x[blocks[0].sources]), blocks)
            expected = functional.cross_entropy(logits, torch.from_numpy(graph.y[seeds]))
            loss = trainer.loss(0, 0, seeds)
            assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)


def test_an_epoch_tells_what_was_asked_and_how_long_that_took(graph: GraphData) -> None:
    owners = owners_of(graph, 2)
    for way, group in (("rpc", 1), ("katana", None)):
        for rank in trained(graph, way, 2, owners):
            for result in rank:
                steps = result.counts["steps"]
                groups = steps if group else 1
                assert result.counts["group"] == (group or steps)
                assert result.counts["relays"] == groups * len(MODEL.fanout)
                assert (result.counts["repeated_vertices"] > 0) == (group is None)
                parts = {part: result.times[f"prepare_{part}"] for part in PARTS}
                assert result.times["preparation_time"] == pytest.approx(sum(parts.values()))
                assert parts.pop("gathering") == 0  # native layers read features where they are
                assert all(seconds > 0 for seconds in parts.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_kernels_of_torch_train_nearly_the_same(graph: GraphData, precision: str) -> None:
    owners, runs = owners_of(graph, 2), []
    for kernels in ("torch", "native"):
        model = MODEL.model_copy(update={"kernels": kernels, "precision": precision})
        runs.append(trained(graph, "katana", 2, owners, model))
    for one, other in zip(*runs, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            close = 1e-5 if precision == "float32" else 0.02
            assert mine.loss == pytest.approx(theirs.loss, rel=close)
            assert mine.times["prepare_gathering"] > theirs.times["prepare_gathering"] == 0
            assert mine.counts["sampling_bytes"] == theirs.counts["sampling_bytes"]
            assert "allocations" not in mine.counts
    assert runs[1][0][1].counts["allocations"] < runs[1][0][0].counts["allocations"]


def test_features_of_16_bits_are_half_as_many_bytes(graph: GraphData) -> None:
    owners = owners_of(graph, 2)
    half = MODEL.model_copy(update={"precision": "bfloat16"})
    (first, _), _ = trained(graph, "rpc", 2, owners)
    (second, _), _ = trained(graph, "rpc", 2, owners, half)
    assert second.counts["sampling_bytes"] < first.counts["sampling_bytes"]
    assert second.loss == pytest.approx(first.loss, rel=0.02)


def test_memory_says_how_many_minibatches_are_prepared_together(graph: GraphData) -> None:
    owners = owners_of(graph, 2)
    (first, _), _ = trained(graph, "katana", 2, owners, memory=1)
    (most, _), _ = trained(graph, "katana", 2, owners, memory=1 << 10)
    assert 1 <= first.counts["group"] <= most.counts["group"] == most.counts["steps"]


def scenario(**tables: Any) -> Scenario:
    table: dict[str, Any] = {
        "scenario": {"name": "tiny"},
        "fabric": {"hosts": 3},
        "sampling": {"timeout": 10.0, "backends": list(WAYS.own), "cache": 1},
        "dataset": {"name": "synthetic", "scale": 9, "classes": 4, "feature_dim": 16},
        "model": {"hidden": 16, "layers": 2, "fanout": [5, 3]},
        "training": {"epochs": 2, "batch_size": 16, "learning_rate": 0.02},
    }
    for name, more in tables.items():
        table[name] = {**table[name], **more} if isinstance(more, dict) else more
    return parse_scenario(table)


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("cache")
def test_a_run_with_losses_and_delays(tmp_path: Path) -> None:
    made = scenario(faults=["drop p=0.02", "delay delay=100us"])
    run = load_run(run_scenario(made, tmp_path / "run", quiet=True))
    assert run.manifest["status"] == "complete"
    losses = run.metric("loss").groupby(["backend", "epoch"])["value"].mean()
    for way in ("rpc-ahead", "rpc-cached", "katana"):
        np.testing.assert_array_equal(losses[way], losses["rpc"])
    assert losses["rpc"][1] < losses["rpc"][0]
    relays = run.metric("relays").groupby("backend")["value"].sum()
    assert relays["katana"] < relays["rpc"] == relays["rpc-ahead"]
    assert set(run.metric("test_accuracy")["backend"]) == set(WAYS.own)
    for metric in ("preparation_time", "edge_cut", "sampling_bytes", "group"):
        assert len(run.metric(metric))


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("cache")
def test_one_host_trains_alone_and_asks_nobody(tmp_path: Path) -> None:
    made = scenario(fabric={"hosts": 1}, sampling={"backends": ["rpc", "katana"]})
    run = load_run(run_scenario(made, tmp_path / "run", quiet=True))
    assert run.manifest["status"] == "complete"
    assert set(run.metric("relays")["value"]) == set(run.metric("sampling_bytes")["value"]) == {0}


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("cache")
def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    made = scenario(faults=["kill host=h2 at=100ms"], training={"epochs": 500, "batch_size": 16})
    with pytest.raises(TestbedError, match="h2"):
        run_scenario(made, tmp_path / "run", quiet=True)


def test_a_rank_without_training_vertices_is_refused(tmp_path: Path, cache: Path) -> None:
    made = scenario(
        fabric={"hosts": 12},
        dataset={"scale": 7, "train_fraction": 0.1, "val_fraction": 0.1},
        sampling={"partitioner": "range"},
    )
    with pytest.raises(
        SpecError, match=r"^sampling\.partitioner = range: rank \d+ of 12 would have no training"
    ):
        run_scenario(made, tmp_path / "run", quiet=True)
