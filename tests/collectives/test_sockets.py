"""The socket baselines on a real fabric: sums against numpy, groups on subsets of hosts, ranks that
die.
"""

import os
import signal

import numpy as np
import pytest

from testbed.collectives.mpi.launch import rank_workers
from testbed.collectives.registry import modules_of, open_backend
from testbed.comm.backend import sum_bound
from testbed.comm.collective import Counters
from testbed.comm.group import make_groups
from testbed.core.errors import CollectiveError, WorkerDied
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.worker import Workers
from tests.support.kept import kept
from tests.support.tiers import broad

pytestmark = pytest.mark.net

BACKENDS = ["tcp-ring", "gloo", "mpi"]
SIZES = [0, 1, 31, 1000, 300_007]


def make_input(size, rank):
    return np.random.default_rng([size, rank]).standard_normal(size, np.float32)


def open_in(context, backend, spec):
    instance = context.resources.enter_context(open_backend(backend, context, spec))
    instance.connect()
    kept(context)[backend, spec.group_id] = instance


def reduce_in(context, backend, group_id, size, rank, in_place=False):
    tensor = make_input(size, rank)
    out = kept(context)[backend, group_id].all_reduce(tensor, tensor if in_place else None)
    assert in_place or np.array_equal(tensor, make_input(size, rank))
    return out


def counters_in(context, backend, group_id):
    return kept(context)[backend, group_id].counters()


def check(results, size):
    inputs = [make_input(size, rank) for rank in range(len(results))]
    expected = np.sum(inputs, axis=0, dtype=np.float64)
    absmax = max(float(np.abs(x).max(initial=0)) for x in inputs)
    for result in results:
        assert np.abs(result - expected).max(initial=0) <= sum_bound(absmax, len(results))


def connect(workers, names, backend, hosts, **options):
    specs = make_groups(hosts, rendezvous=str(workers.fabric.directory), **options)
    arguments = {
        name: {"backend": backend, "spec": spec} for name, spec in zip(names, specs, strict=True)
    }
    workers.call_all(open_in, arguments, timeout=60)


def all_reduce(workers, names, backend, size, group_id=0, **options):
    common = {"backend": backend, "group_id": group_id, "size": size, **options}
    arguments = {name: {**common, "rank": rank} for rank, name in enumerate(names)}
    return list(workers.call_all(reduce_in, arguments, timeout=60).values())


@pytest.mark.parametrize("ranks", broad([3, 1, 2, 4, 8]))
def test_sums_equal_numpys(ranks):
    plan = plan_fabric(hosts=ranks, switch="bridge")
    with (
        Fabric(plan) as fabric,
        Workers(fabric, modules=[__name__, *modules_of(BACKENDS)]) as workers,
    ):
        for backend in BACKENDS:
            with rank_workers(backend, workers, list(fabric.hosts)) as names:
                connect(workers, names, backend, plan.hosts)
                for size in SIZES:
                    for in_place in (False, True):
                        check(all_reduce(workers, names, backend, size, in_place=in_place), size)
                arguments = {name: {"backend": backend, "group_id": 0} for name in names}
                sent = sum(workers.call_all(counters_in, arguments).values(), Counters())
                if ranks > 1:
                    # Two all-reduces of each size; no algorithm sends less than a ring, 2(n-1)
                    # tensors.
                    assert sent.wire_bytes > 2 * sum(SIZES) * 4 * 2 * (ranks - 1)
                    assert 0 < sent.packets < sent.wire_bytes / 54


@pytest.mark.deep
def test_groups_over_subsets_take_turns():
    plan = plan_fabric(hosts=4, switch="bridge")
    groups = {1: [0, 1, 2, 3], 2: [3, 1], 3: [0, 2]}
    with (
        Fabric(plan) as fabric,
        Workers(fabric, modules=[__name__, *modules_of(BACKENDS)]) as workers,
    ):
        for backend in BACKENDS:
            with rank_workers(backend, workers, list(fabric.hosts)) as all_names:
                members = {
                    group: [all_names[i] for i in chosen] for group, chosen in groups.items()
                }
                for group, names in members.items():
                    hosts = [plan.hosts[i] for i in groups[group]]
                    connect(workers, names, backend, hosts, group_id=group)
                for group in (1, 2, 3, 2, 1):
                    check(all_reduce(workers, members[group], backend, 5000, group_id=group), 5000)


@pytest.mark.deep
def test_a_stopped_rank_is_an_error_in_bounded_time():
    """With gloo; see test_tcp_ring.py for `tcp-ring`."""
    plan = plan_fabric(hosts=3, switch="bridge")
    with (
        Fabric(plan) as fabric,
        Workers(fabric, modules=[__name__, *modules_of(["gloo"])]) as workers,
    ):
        connect(workers, list(fabric.hosts), "gloo", plan.hosts, timeout=1.0)
        os.kill(workers["h2"].pid, signal.SIGSTOP)
        try:
            with pytest.raises(CollectiveError, match=r"Timed out|timed out"):
                all_reduce(workers, ["h1", "h3", "h2"], "gloo", 100_000)
        finally:
            os.kill(workers["h2"].pid, signal.SIGCONT)


@pytest.mark.deep
def test_a_killed_rank_ends_the_others():
    """With MPI, whose ranks are not the fabric's workers; see test_workers.py for those."""
    plan = plan_fabric(hosts=3, switch="bridge")
    with (
        Fabric(plan) as fabric,
        Workers(fabric, modules=[__name__, *modules_of(["mpi"])]) as workers,
    ):

        def run():
            with rank_workers("mpi", workers, list(fabric.hosts)) as names:
                connect(workers, names, "mpi", plan.hosts)
                os.kill(workers[names[1]].pid, signal.SIGKILL)
                all_reduce(workers, names, "mpi", 100_000)

        with pytest.raises(WorkerDied) as caught:
            run()
        assert caught.value.worker.endswith("h2")
