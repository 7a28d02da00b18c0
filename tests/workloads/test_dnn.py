"""Deep networks: published sizes, DDP's buckets, and a run."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import _compute_bucket_assignment_by_size

from analysis.report import make_report
from testbed.core.errors import CollectiveError, SpecError
from testbed.host import estimates
from testbed.results import load_run
from testbed.run import check, run_scenario
from testbed.scenario import Scenario, parse_scenario
from testbed.workloads.dnn.architectures import ARCHITECTURES
from testbed.workloads.dnn.buckets import FIRST_BYTES, Bucket, make_buckets, work_of
from testbed.workloads.dnn.scenario import DNNTable
from testbed.workloads.dnn.train import Trainer
from tests.support.workloads.networks import SMALL, Alone

NETWORK = "tests.support.workloads.networks:SMALL"


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "billions"),
    [
        ("vgg16", 138_357_544, 32, 15.47),
        ("resnet50", 25_557_032, 161, 4.09),
        ("bert-base", 109_482_240, 199, 11.17),
        ("gpt2-small", 124_439_808, 148, 145.82),
    ],
)
def test_architectures_have_their_published_sizes(
    name: str, parameters: int, tensors: int, billions: float
) -> None:
    found = ARCHITECTURES[name]
    assert (found.parameters, len(found.tensors)) == (parameters, tensors)
    assert round(found.macs / 1e9, 2) == billions


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("limit", [1 << 20, 25 << 20, 1 << 30])
def test_buckets_are_those_of_ddp(name: str, limit: int) -> None:
    sizes = ARCHITECTURES[name].tensors
    given = [torch.empty(size, device="meta") for size in reversed(sizes)]
    expected = _compute_bucket_assignment_by_size(given, [FIRST_BYTES, limit])[0]
    ends = [sum(sizes[::-1][: indices[-1] + 1]) for indices in expected]
    buckets = make_buckets(sizes, limit)
    assert [bucket.end for bucket in buckets] == ends
    assert [bucket.start for bucket in buckets] == [0, *ends[:-1]]


def test_work_is_divided_without_a_rest() -> None:
    assert work_of([1, 0, 2, 1], 10) == [2, 0, 5, 3]
    assert sum(work_of([7, 11, 13], 1000)) == 1000


@pytest.mark.parametrize("overlap", [True, False])
def test_each_bucket_is_summed_once_a_step(overlap: bool) -> None:
    table = DNNTable(model=NETWORK, steps=3, bucket_mb=1, overlap=overlap)
    assert table.buckets == [Bucket(0, 305_020), Bucket(305_020, 505_020)]
    backend = Alone(None, SimpleNamespace(size=1, capacity=SMALL.parameters))
    trainer = Trainer(table, units=9, rank=0, world=1, seed=1)
    first, second = (trainer.epoch(backend, epoch) for epoch in range(2))
    assert backend.sizes == [305_020, 200_000] * 6
    assert (first.counts["steps"], first.counts["packets"]) == (3, 6)
    parts = ("forward", "backward", "exposed", "update", "other")
    assert sum(first.times[part] for part in parts) == pytest.approx(first.times["epoch_time"])
    assert len(first.entered) == len(first.left) == 6
    assert first.digest != second.digest


class Threaded(Alone):
    """Sums in a thread of its own, as gloo does, and takes `SPENT` seconds of CPU time."""

    SPENT = 0.002

    def all_reduce(self, *arguments: Any, **keys: Any) -> Any:
        def work() -> None:
            while time.thread_time() < self.SPENT:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return super().all_reduce(*arguments, **keys)


def test_cpu_time_of_a_librarys_threads_counts() -> None:
    table = DNNTable(model=NETWORK, steps=3, bucket_mb=1)
    backend = Threaded(None, SimpleNamespace(size=1, capacity=SMALL.parameters))
    used = Trainer(table, units=9, rank=0, world=1, seed=1).epoch(backend, 0)
    assert used.times["communication_cpu_time"] >= 6 * Threaded.SPENT


def test_a_wrong_sum_is_found() -> None:
    table = DNNTable(model=NETWORK, steps=1)
    backend = Alone(None, SimpleNamespace(size=1, capacity=SMALL.parameters), error=1.0)
    with pytest.raises(CollectiveError, match=r"^alone: element 305019 of rank 0's summed"):
        Trainer(table, units=0, rank=0, world=1, seed=1).epoch(backend, 0)


def scenario(**keys: object) -> Scenario:
    return parse_scenario({"scenario": {"name": "s"}, "fabric": {"hosts": 3}, "dnn": keys})


def test_memory_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "free_memory", lambda: 1 << 30)
    with pytest.raises(SpecError, match=r'^fabric.hosts = 3, dnn.model = "vgg16": needs about'):
        check(scenario(model="vgg16"))
    check(scenario(model=NETWORK))


@pytest.mark.net
@pytest.mark.usefixtures("cache")
def test_a_run_is_reported(tmp_path: Path) -> None:
    backends = ["xdp-ring", "tcp-ring"]
    keys = {"model": NETWORK, "compute": 0.01, "epochs": 2, "steps": 2, "backends": backends}
    run = load_run(run_scenario(scenario(**keys), tmp_path / "run", quiet=True))
    assert run.backends == backends
    assert run.manifest["parameters"] == SMALL.parameters
    assert run.manifest["multiplications"] > 0
    ranks = run.frame[run.frame["metric"] == "exposed_time"]
    assert len(ranks) == 3 * 2 * 2
    html = make_report(run.path)[0].read_text()
    assert "summed in 2 buckets while backward goes on" in html
    assert "<td>exposed, " in html
    assert "The same training" not in html
