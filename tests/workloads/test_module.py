"""Data-parallel training of any torch module."""

import importlib
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from testbed.comm.backend import Backend
from testbed.core.errors import SpecError
from testbed.core.users_code import UsersError
from testbed.gnn.options import MinibatchSpec
from testbed.gnn.weights import give
from testbed.results import load_run
from testbed.run import run_scenario
from testbed.scenario import Scenario, load_scenario, parse_scenario
from testbed.workloads.module.scenario import ModuleTable
from testbed.workloads.module.train import ModuleTrainer, make_task
from tests.support.workloads.ddp import SEED, SPEC, alone
from tests.support.workloads.networks import Alone
from tests.support.workloads.threads import on_ranks

ROOT = Path(__file__).parents[2]
BARS = "tests.support.workloads.tasks:Bars"


def scenario(**module: Any) -> Scenario:
    return parse_scenario(
        {
            "scenario": {"name": "m"},
            "fabric": {"hosts": 2},
            "module": {"backends": ["xdp-ring", "tcp-ring"], **module},
            "training": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05},
        }
    )


def trainers(world: int, **training: Any) -> list[ModuleTrainer]:
    spec = MinibatchSpec(batch_size=8, **training)
    return [ModuleTrainer(ModuleTable(task=BARS), spec, rank, world, 3) for rank in range(world)]


def test_ranks_begin_with_equal_weights_and_share_the_samples() -> None:
    one, other = trainers(2)
    assert torch.equal(one.weights, other.weights)
    seen = [np.concatenate(each.batches(0)).tolist() for each in (one, other)]
    assert sorted(seen[0] + seen[1]) == list(range(64))
    assert [len(batch) for batch in one.batches(0)] == [8, 8, 8, 8]
    assert one.batches(0)[0].tolist() != one.batches(1)[0].tolist()
    assert len(trainers(1, steps=3)[0].batches(0)) == 3


def test_the_mean_of_the_ranks_gradients_is_the_whole_batchs() -> None:
    alone, *both = *trainers(1), *trainers(2)
    numbers = np.arange(16)
    alone.loss(0, 0, numbers).backward()  # type: ignore[no-untyped-call]
    for trainer, part in zip(both, np.split(numbers, 2), strict=True):
        trainer.loss(0, 0, part).backward()  # type: ignore[no-untyped-call]
    whole, one, other = (torch.from_numpy(each.gradients.collect()) for each in (alone, *both))
    parameters = alone.weights.numel()
    torch.testing.assert_close(whole[:parameters], ((one + other) / 2)[:parameters])


def test_every_sample_is_judged_once() -> None:
    found = [trainer.validate(0) for trainer in trainers(3)]
    (alone,) = trainers(1)
    assert tuple(np.sum(found, axis=0)) == alone.validate(0)
    assert 0 <= alone.test_accuracy() <= 1


TASKS = "tests.support.workloads.tasks"


def train(task: str, spec: MinibatchSpec, world: int = 2) -> list[ModuleTrainer]:
    """Train on ranks that are threads."""

    table = ModuleTable(task=f"{TASKS}:{task}")
    ranks = [ModuleTrainer(table, spec, rank, world, SEED) for rank in range(world)]

    def work(backend: Backend, rank: int) -> None:
        for epoch in range(spec.epochs):
            ranks[rank].epoch(backend, epoch)

    on_ranks(world, work, capacity=ranks[0].capacity)
    return ranks


def test_a_task_beside_its_scenario_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TESTBED_MODULES", "")
    (tmp_path / "my_own_bars.py").write_text("from tests.support.workloads.tasks import Bars\n")
    (tmp_path / "random.py").write_text("raise RuntimeError('in place of a library')\n")
    place = tmp_path / "s.toml"
    place.write_text('[scenario]\nname = "s"\n[module]\ntask = "my_own_bars:Bars"\n')
    found = load_scenario(place)
    found.workload.begin(found).prepare(lambda said: None)
    assert sys.path[-1] == str(tmp_path)  # behind all others
    assert importlib.import_module("random").__name__ == "random"


@pytest.mark.parametrize("task", ["Frozen", "Unused"])
def test_what_has_no_gradient_is_not_decayed(task: str) -> None:
    spec = MinibatchSpec(batch_size=8, epochs=1, learning_rate=0.05, weight_decay=0.5)
    torch.manual_seed(SEED)
    first = {name: each.clone() for name, each in make(task).named_parameters()}
    for trainer in train(task, spec):
        changed = {
            name.split(".")[0]
            for name, each in trainer.model.named_parameters()
            if not torch.equal(each, first[name])
        }
        assert changed == {"Frozen": {"4"}, "Unused": {"used"}}[task]


def test_ranks_begin_as_rank_0_and_take_its_buffers() -> None:
    spec = MinibatchSpec(batch_size=8, epochs=1, learning_rate=0.05)
    for task in ("NumpyInit", "Normed"):
        one, other = (trainer.model.state_dict() for trainer in train(task, spec))
        for name, value in one.items():
            assert torch.equal(value, other[name]), (task, name)


def test_ranks_keep_their_own_where_a_backend_has_no_broadcast() -> None:
    tensor = torch.ones(3)
    give(Alone(None, SimpleNamespace(size=1, capacity=8)), [tensor])
    assert torch.equal(tensor, torch.ones(3))


def make(task: str) -> torch.nn.Module:
    return make_task(ModuleTable(task=f"{TASKS}:{task}")).model()


UNUSUAL = ["Cleared", "Clipped", "Mirrored", "InTurns", "Oddities", "Sparse"]


@pytest.mark.parametrize("task", ["Bars", "Frozen", "Unused", "Shared", *UNUSUAL])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_that_of_a_plain_loop(task: str, optimizer: Any) -> None:
    """Of one rank, whatever the module does with its parameters and their gradients."""
    spec = SPEC.model_copy(update={"optimizer": optimizer})
    (trainer,) = train(task, spec, world=1)
    found, expected = trainer.model.state_dict(), alone(f"{TASKS}:{task}", spec).state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", UNUSUAL)
def test_ranks_end_with_equal_weights(task: str) -> None:
    one, other = train(task, SPEC)
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


@pytest.mark.deep
@pytest.mark.parametrize("task", ["Bars", "Frozen", "Unused", "Shared", "Normed", *UNUSUAL])
def test_training_is_that_of_torchs_own_ddp(task: str, tmp_path: Path) -> None:
    """Over gloo, with the same batches, to the last epoch."""
    out, store = tmp_path / "out.pt", tmp_path / "store"
    words = [sys.executable, "-m", "tests.support.workloads.ddp", f"{TASKS}:{task}"]
    ranks = [
        subprocess.Popen([*words, str(rank), "2", str(store), str(out)], cwd=ROOT)
        for rank in range(2)
    ]
    assert [rank.wait(100) for rank in ranks] == [0, 0]
    reference = torch.load(out, weights_only=True)
    trainer, _ = train(task, SPEC)
    found = trainer.model.state_dict()
    assert found.keys() == reference.keys()
    for name, value in reference.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ({"task": "tests.support.workloads.tasks:AllFrozen"}, "has no parameter to train"),
        ({"task": "tests.support.workloads.tasks:Doubles"}, "must be torch.float32; it has torch"),
        (
            {"task": "tests.support.workloads.tasks:Stream"},
            "dataset('train'): must have a length, and samples by number (__len__, __getitem__),"
            " which Samples has not",
        ),
        (
            {"task": "tests.support.workloads.tasks:Lazy"},
            "it finds out those of 1.weight, 1.bias with its first batch: give it one in model()",
        ),
        ({"arguments": {"depth": 3}}, "module.arguments: task blobs: "),
        ({"arguments": {"samples": 1}}, "fabric.hosts = 2: must be at most the size of the"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    tmp_path: Path, module: dict[str, Any], text: str
) -> None:
    session = scenario(**module).workload.begin(scenario(**module))
    with pytest.raises(SpecError) as caught:
        session.prepare(lambda said: None)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("task", "text", "place"),
    [
        ("Alone", "loss: ValueError: Expected more than 1 value per channel when training", "loss"),
        ("Unread", "batch of dataset('train'): KeyError: 'no such'", "__getitem__"),
        ("ManyLosses", "gradient of the loss: RuntimeError: grad can be implicitly created", None),
        ("Broken", "model: RuntimeError: no module today", "model"),
    ],
)
def test_an_error_of_a_task_is_one_line_and_its_own_frames(
    task: str, text: str, place: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    table = ModuleTable(task=f"{TASKS}:{task}")
    batch = MinibatchSpec(batch_size=1 if task == "Alone" else 8)
    with pytest.raises(UsersError) as caught:
        ModuleTrainer(table, batch, 0, 1, SEED).warm_up()
    first, *more = str(caught.value).splitlines()
    frames = [line for line in more if line.startswith("  File ")]
    assert first.startswith(f"task {TASKS}:{task}: {text}")
    assert first.endswith(" (-v shows the traceback)")
    assert [line.rpartition(" in ")[2] for line in frames] == ([place] if place else [])
    assert all("/tests/support/workloads/tasks.py" in line for line in frames)
    with caplog.at_level(logging.INFO, "testbed"), pytest.raises(UsersError) as caught:
        ModuleTrainer(table, batch, 0, 1, SEED).warm_up()
    assert "Traceback (most recent call last)" in caplog.text
    assert "-v shows" not in str(caught.value)


def test_a_class_that_is_no_task() -> None:
    with pytest.raises(SpecError, match=r"task torch\.nn:Linear: must be a subclass of "):
        scenario(task="torch.nn:Linear")


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("cache")
def test_a_run_with_losses(tmp_path: Path) -> None:
    """Sums in the kernel and over sockets train the same module."""
    table = scenario(task=BARS, timeout=20.0).model_dump(mode="json")
    made = parse_scenario({**table, "faults": ["drop p=0.05"]})
    run = load_run(run_scenario(made, tmp_path / "run", quiet=True))
    assert run.manifest["samples"] == {"train": 64, "val": 64, "test": 64}
    losses = run.metric("loss").groupby(["backend", "epoch"])["value"].mean()
    np.testing.assert_allclose(losses["xdp-ring"], losses["tcp-ring"], atol=0.02)
    assert set(run.metric("test_accuracy")["backend"]) == {"xdp-ring", "tcp-ring"}


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("cache")
def test_backends_begin_with_equal_weights_whatever_these_are_drawn_with(tmp_path: Path) -> None:
    """Ranks of mpi are processes of their own."""
    made = scenario(
        task="tests.support.workloads.tasks:NumpyInit",
        timeout=20.0,
        backends=["xdp-ring", "tcp-ring", "mpi"],
        lanes="int32",
    )
    run = load_run(run_scenario(made, tmp_path / "run", quiet=True))
    losses = run.metric("loss").groupby(["backend", "epoch"])["value"].mean()
    for backend in ("xdp-ring", "mpi"):
        np.testing.assert_allclose(losses[backend], losses["tcp-ring"], rtol=1e-4)
