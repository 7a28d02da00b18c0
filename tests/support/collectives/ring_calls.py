"""The in-kernel ring in workers: what tests have them do, and what comes of it."""

import os

import numpy as np

from testbed.collectives.ring.xdp_ring import XdpRing
from testbed.comm.group import make_groups
from testbed.testing import exact_sum
from tests.support.kept import kept

MTU = 1500


def make_input(size, rank):
    return np.random.default_rng([size, rank]).standard_normal(size, np.float32)


def expected(size, ranks, bits):
    return exact_sum([make_input(size, rank) for rank in range(ranks)], f"int{bits}")


def open_in(context, spec):
    ring = context.resources.enter_context(XdpRing(context, spec))
    ring.connect()
    kept(context)[spec.group_id] = ring


def close_in(context, group_id=0):
    kept(context)[group_id].close()


LOOK = 0.5e-3  # seconds: a wait looks at its CPUs' lanes this often at most, each on its own


def reduce_in(context, sizes, rank, group_id=0):
    ring = kept(context)[group_id]
    return [ring.all_reduce(make_input(size, rank)) for size in sizes]


def reduce_values_in(context, values, group_id=0):
    return kept(context)[group_id].all_reduce(np.asarray(values, np.float32))


def counters_in(context, group_id=0):
    ring = kept(context)[group_id]
    looks = len(os.sched_getaffinity(1)) * ring.phases["wait"] / LOOK
    return ring.statistics() | {"looks": looks}


def set_seq_in(context, seq, group_id=0):
    kept(context)[group_id].seq = seq


def connect(workers, hosts, **options):
    specs = make_groups(hosts, mtu=MTU, **options)
    workers.call_all(
        open_in,
        {host.name: {"spec": spec} for host, spec in zip(hosts, specs, strict=True)},
        timeout=60,
    )


def all_reduce(workers, hosts, sizes, group_id=0):
    arguments = {
        host.name: {"sizes": sizes, "rank": rank, "group_id": group_id}
        for rank, host in enumerate(hosts)
    }
    return list(workers.call_all(reduce_in, arguments, timeout=90).values())


def check(results, sizes, bits):
    for of_rank in results:
        for result, size in zip(of_rank, sizes, strict=True):
            np.testing.assert_array_equal(result, expected(size, len(results), bits), strict=True)
