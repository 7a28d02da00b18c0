"""All-reduces that are one call of native code: what it accepts and what it leaves to Python."""

import numpy as np
import pytest

from testbed.collectives.registry import open_backend
from testbed.comm.group import make_groups
from testbed.core.errors import SpecError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.worker import Workers
from tests.support.kept import kept

pytestmark = pytest.mark.net

SIZE = 6000
CAPACITY = 8000


def read_only() -> np.ndarray:
    array = np.zeros(SIZE, np.float32)
    array.flags.writeable = False
    return array


def overlapping() -> tuple[np.ndarray, np.ndarray]:
    memory = np.zeros(SIZE + 8, np.float32)
    return memory[:-8], memory[8:]


GOOD = np.zeros(SIZE, np.float32)
REFUSED = {
    "tensor is float16": (np.zeros(SIZE, np.float16), np.zeros(SIZE, np.float32)),
    "tensor is >f4": (np.zeros(SIZE, ">f4"), np.zeros(SIZE, np.float32)),
    "tensor is uint32": (np.zeros(SIZE, np.uint32), np.zeros(SIZE, np.float32)),
    "out is float64": (GOOD, np.zeros(SIZE)),
    "with strides": (np.zeros(2 * SIZE, np.float32)[::2], np.zeros(SIZE, np.float32)),
    "out is read-only": (GOOD, read_only()),
    "out has shape": (GOOD, np.zeros((2, SIZE // 2), np.float32)),
    "out overlaps tensor": overlapping(),
    "tensor begins at": (
        np.frombuffer(bytearray(4 * SIZE + 1), np.float32, SIZE, offset=1),
        np.zeros(SIZE, np.float32),
    ),
    "must be at most the group's capacity": (
        np.zeros(CAPACITY + 1, np.float32),
        np.zeros(CAPACITY + 1, np.float32),
    ),
}


def values_of(rank: int, number: int) -> np.ndarray:
    return np.random.default_rng([rank, number]).integers(-50, 50, SIZE).astype(np.float32)


def open_in(context, backend, spec) -> None:
    instance = context.resources.enter_context(open_backend(backend, context, spec))
    instance.connect()
    kept(context)[backend] = instance


def reduce_in(context, backend, rank) -> list[np.ndarray]:
    """In place, into another array, into a new one, and as a matrix."""
    all_reduce = kept(context)[backend].all_reduce
    sums = []
    for number in range(8):
        values = values_of(rank, number)
        matrix = values.reshape(2, -1) if number % 4 == 3 else values
        out = (values, np.empty_like(values), None, None)[number % 4]
        found = all_reduce(matrix, out)
        assert out is None or found is out
        assert found.shape == matrix.shape
        assert out is values or np.array_equal(values, values_of(rank, number))
        sums.append(found.reshape(-1))
    return sums


def refusals_in(context, backend) -> dict[str, str]:
    found = {}
    for name, (tensor, out) in REFUSED.items():
        try:
            kept(context)[backend].all_reduce(tensor, out)
        except SpecError as error:
            found[name] = str(error)
    return found


def test_arrays_are_checked_and_results_are_exact_in_every_form() -> None:
    plan = plan_fabric(hosts=2)
    with Fabric(plan) as fabric, Workers(fabric, modules=[__name__]) as workers:
        hosts = [host.name for host in plan.hosts]
        expected = [values_of(0, number) + values_of(1, number) for number in range(8)]
        for backend in ("tcp-ring", "xdp-ring"):
            specs = make_groups(plan.hosts, capacity=CAPACITY, rendezvous=str(fabric.directory))
            set_datapath(fabric, "xdp" if backend == "xdp-ring" else "sockets")
            each = {
                name: {"backend": backend, "spec": spec}
                for name, spec in zip(hosts, specs, strict=True)
            }
            workers.call_all(open_in, each, timeout=60)
            ranks = {name: {"backend": backend, "rank": rank} for rank, name in enumerate(hosts)}
            for _ in range(2):  # the second time, after all refusals
                for sums in workers.call_all(reduce_in, ranks, timeout=60).values():
                    for found, right in zip(sums, expected, strict=True):
                        np.testing.assert_allclose(found, right, atol=1e-4)
                calls = {name: {"backend": backend} for name in hosts}
                for refused in workers.call_all(refusals_in, calls).values():
                    assert set(refused) == set(REFUSED)
                    assert all(name in text for name, text in refused.items())
