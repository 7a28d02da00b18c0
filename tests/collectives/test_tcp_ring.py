"""tcp-ring: all ranks as threads over loopback addresses, and over a fabric in test_sockets.py."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest

from testbed.collectives import tcp_ring
from testbed.comm import rendezvous
from testbed.comm.group import make_groups
from testbed.core.errors import CollectiveError, SpecError
from tests.support.collectives.foreign_clients import (
    FOREIGN,
    address_of,
    connect_clients,
    is_closed,
)
from tests.support.tiers import broad

CONTEXT = SimpleNamespace(host=SimpleNamespace(ifname="lo"))
GROUP_IDS = iter(range(4095))


def make_specs(ranks, **options):
    hosts = [
        SimpleNamespace(name=f"h{i + 1}", ip=f"127.77.0.{i + 1}", mac="") for i in range(ranks)
    ]
    return make_groups(
        hosts, group_id=next(GROUP_IDS), timeout=options.pop("timeout", 5.0), **options
    )


def on_all_ranks(specs, work):
    """Run work(rank, backend) in one thread per rank; return the results or raise the first
    error.
    """

    def one(spec):
        with tcp_ring.TcpRing(CONTEXT, spec) as backend:
            backend.connect()
            return work(spec.rank, backend)

    with ThreadPoolExecutor(len(specs)) as pool:
        return [future.result() for future in [pool.submit(one, spec) for spec in specs]]


def inputs(ranks, size):
    return [
        np.random.default_rng([size, r]).standard_normal(size, np.float32) for r in range(ranks)
    ]


@pytest.fixture
def small_blocks(monkeypatch):
    """Make short tensors take several slices, steps end inside segments, and slots run out."""
    monkeypatch.setattr(tcp_ring, "BLOCK", 192)  # 48 elements of 4 bytes
    monkeypatch.setattr(tcp_ring, "SEGMENT", 24)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
def test_sums_equal_numpys(small_blocks, ranks, in_place):
    sizes = [0, 1, ranks - 1, ranks + 1, 48 * ranks, 48 * ranks + 1, 10_007]
    tensors = {size: inputs(ranks, size) for size in sizes}

    def work(rank, backend):
        results = []
        for size in sizes:
            mine = tensors[size][rank].copy()
            out = backend.all_reduce(mine, mine if in_place else None)
            assert in_place or np.array_equal(mine, tensors[size][rank])
            results.append(out)
        return results

    results = on_all_ranks(make_specs(ranks), work)
    bound = tcp_ring.TcpRing(CONTEXT, make_specs(ranks)[0]).error_bound
    for index, size in enumerate(sizes):
        expected = np.sum(tensors[size], axis=0, dtype=np.float64)
        absmax = max((float(np.abs(x).max(initial=0)) for x in tensors[size]), default=0.0)
        for rank in range(ranks):
            assert np.abs(results[rank][index] - expected).max(initial=0) <= bound(absmax)
            # A ring gives all ranks exactly the same bits.
            assert np.array_equal(results[rank][index], results[0][index])


OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("kind", ["float64", "int32", "int64"])
def test_other_types_are_reduced_exactly(small_blocks, kind):
    """Values that no float32 can hold, and whose sums are exact; those of integers wrap around."""
    most = 1 << 50 if kind == "float64" else np.iinfo(kind).max
    sizes, ranks = (1, 24 * 3 + 1, 1003), 3
    tensors = {
        size: [
            np.random.default_rng([size, rank]).integers(-most, most, size).astype(kind)
            for rank in range(ranks)
        ]
        for size in sizes
    }

    def work(rank, backend):
        reduced = {
            (op, size): backend.all_reduce(tensors[size][rank], op=op)
            for size in sizes
            for op in OPS
        }
        return reduced, backend.reduce_scatter(tensors[1003][rank][:1002])

    for rank, (reduced, block) in enumerate(on_all_ranks(make_specs(ranks), work)):
        for (op, size), found in reduced.items():
            assert found.dtype == kind
            assert np.array_equal(found, reduce(OPS[op], tensors[size]))
        assert np.array_equal(block, reduced["sum", 1003][:1002].reshape(ranks, -1)[rank])


@pytest.mark.parametrize("kind", ["float64", "float16", "int32", "int64"])
def test_values_of_any_type_arrive_bit_by_bit(kind):
    words = np.random.default_rng(7).integers(0, 1 << 32, (2, 1000), np.uint32)
    tensors = [each.view(kind) for each in words]

    def work(rank, backend):
        gathered = backend.all_gather(tensors[rank])
        return gathered, backend.broadcast(tensors[rank].copy(), 1)

    for gathered, copied in on_all_ranks(make_specs(2), work):
        assert gathered.dtype == copied.dtype == kind
        assert gathered.tobytes() == words.tobytes()
        assert copied.tobytes() == words[1].tobytes()


def test_real_block_sizes_and_shapes():
    tensors = [x.reshape(3, -1) for x in inputs(3, 3 * (1 << 20) + 3 * 77)]
    results = on_all_ranks(make_specs(3), lambda rank, backend: backend.all_reduce(tensors[rank]))
    assert results[0].shape == tensors[0].shape
    assert np.allclose(results[0], np.sum(tensors, axis=0, dtype=np.float64), atol=1e-5)


def test_a_thousand_in_a_row():
    def work(rank, backend):
        x = np.full(37, rank + 1, np.float32)
        return [backend.all_reduce(x * k)[5] for k in range(1000)]

    results = on_all_ranks(make_specs(3), work)
    assert results == [[6.0 * k for k in range(1000)]] * 3


def test_time_is_accounted_for():
    def work(rank, backend):
        backend.all_reduce(np.ones(100_000, np.float32))
        return backend.phases

    for phases in on_all_ranks(make_specs(2), work):
        assert phases["communicate"] > 0
        assert phases["wait"] >= 0
        assert phases["quantize"] == phases["dequantize"] == 0


def gather_errors(specs, work):
    """Like on_all_ranks, but each rank's result is the CollectiveError that it raised."""

    def catching(rank, backend):
        try:
            work(rank, backend)
        except CollectiveError as error:
            return str(error)
        return None

    return on_all_ranks(specs, catching)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_all_ranks_name_the_one_that_left(size):
    def work(rank, backend):
        if rank == 2:
            backend.close()
        else:
            backend.all_reduce(np.ones(size, np.float32))

    errors = gather_errors(make_specs(5), work)
    expected = "tcp-ring: rank 2 (h3) has closed its connection or died"
    assert errors == [expected, expected, None, expected, expected]


PATIENCE = 2.0  # seconds; ranks that enter less than a quarter of it apart name the same one


@pytest.mark.parametrize("size", broad([1 << 20, 1]))
def test_all_ranks_name_the_one_that_is_silent(size):
    others, entered = threading.Semaphore(0), threading.Barrier(4)

    def work(rank, backend):
        entered.wait(30)
        if rank == 1:
            for _ in range(3):
                others.acquire()
        else:
            try:
                backend.all_reduce(np.ones(size, np.float32))
            finally:
                others.release()

    errors = gather_errors(make_specs(4, timeout=PATIENCE), work)
    expected = f"tcp-ring: rank 1 (h2) was silent for {PATIENCE:g} s"
    assert errors == [expected, None, expected, expected]


def test_a_rank_that_never_comes():
    specs = make_specs(3, connect_timeout=0.3)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(tcp_ring.TcpRing(CONTEXT, spec).connect) for spec in specs[:2]]
        errors = [str(future.exception()) for future in futures]
    # Rank 0 may have had no answer from a rank 1 whose thread began late.
    late = "tcp-ring: rank 1 (h2) did not answer within 0.3 s"
    assert errors[0] in ("tcp-ring: rank 2 (h3) did not come within 0.3 s", late)
    assert errors[1] == "tcp-ring: rank 2 (h3) did not answer within 0.3 s"


def test_ranks_meet_however_short_a_collective_may_be_silent():
    assert on_all_ranks(make_specs(3, timeout=1e-3), lambda rank, backend: rank) == [0, 1, 2]


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_clients_delay_nobody_and_are_closed(kind):
    specs = make_specs(2)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(connect_and_sum, specs[0])
        # Rank 0 listens, and cannot have met rank 1, which does not exist.
        with connect_clients(
            address_of(specs[0]), [FOREIGN[kind]] * 50, lambda: not first.done()
        ) as clients:
            second = pool.submit(connect_and_sum, specs[1])
            assert first.result() == second.result() == 3.0
            assert all(map(is_closed, clients))


def test_foreign_clients_of_all_kinds_at_several_listeners():
    first, second, third, last = make_specs(4)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        pool.submit(connect_and_sum, second)
        waiting = {
            spec: pool.submit(connect_and_sum, spec) for spec in (first, third)
        }  # for the last
        for spec, future in waiting.items():
            behaviours = [*FOREIGN.values()] * 4
            stack.enter_context(
                connect_clients(
                    address_of(spec), behaviours, lambda future=future: not future.done()
                )
            )
        assert connect_and_sum(last) == 10.0
        assert [future.result() for future in waiting.values()] == [10.0] * 2


def test_the_oldest_of_too_many_foreign_clients_makes_room(monkeypatch):
    monkeypatch.setattr(rendezvous, "MOST_PENDING", 8)
    specs = make_specs(2)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(connect_and_sum, specs[0])
        with connect_clients(
            address_of(specs[0]), [FOREIGN["silent"]] * 50, lambda: not first.done()
        ) as clients:
            assert all(map(is_closed, clients[:42]))  # before any ranks have met
            assert not first.done()
            second = pool.submit(connect_and_sum, specs[1])
            assert first.result() == second.result() == 3.0


def test_a_foreign_listener_in_a_members_place():
    specs = make_specs(2)
    with ThreadPoolExecutor(2) as pool:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address_of(specs[1]))
            listener.listen()
            listener.settimeout(5)
            first = pool.submit(connect_and_sum, specs[0])
            for _ in range(4):  # each of the two connections is tried again
                client, _ = listener.accept()
                with client:
                    client.settimeout(5)
                    client.sendall(client.recv(20))  # its own handshake, as an echo
        second = pool.submit(connect_and_sum, specs[1])
        assert first.result() == second.result() == 3.0


def connect_and_sum(spec):
    with tcp_ring.TcpRing(CONTEXT, spec) as backend:
        backend.connect()
        return float(backend.all_reduce(np.full(1, spec.rank + 1, np.float32))[0])


@pytest.mark.parametrize(
    ("tensor", "out", "text"),
    [
        (
            np.zeros(4, np.float16),
            None,
            "tensor is float16 .*: must be float32, float64, int32 or int64, C-contiguous",
        ),
        (np.zeros((4, 4), np.float32).T, None, "must be float32, float64, int32 or int64, C-cont"),
        (np.zeros(4), np.zeros(4, np.float32), "out is float32 .*: must be float64, C-contiguous"),
        (
            np.zeros(9),
            None,
            "tensor has 9 elements: must be at most the group's capacity, 8",
        ),
        (
            np.zeros(4, np.float32),
            np.zeros(5, np.float32),
            r"out has shape \(5,\): must be the tensor's, \(4,\)",
        ),
        (
            np.zeros(17, np.float32),
            None,
            "tensor has 17 elements: must be at most the group's capacity, 16",
        ),
    ],
)
def test_bad_arrays(tensor, out, text):
    with pytest.raises(SpecError, match=text):
        tcp_ring.TcpRing(CONTEXT, make_specs(1, capacity=16)[0]).all_reduce(tensor, out)


def test_averages_of_integers():
    with pytest.raises(SpecError, match="op = 'avg': must be one of sum, min, max with tcp-ring"):
        tcp_ring.TcpRing(CONTEXT, make_specs(1)[0]).all_reduce(np.zeros(4, np.int32), op="avg")


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (np.zeros(3, np.float16), "3 elements of float16 have 6 bytes: must be a multiple of 4"),
        (
            np.zeros(5, np.float16)[1:],
            "memory begins at 0x[0-9a-f]*[26ae]: must be a multiple of 4",
        ),
    ],
)
def test_halves_that_are_no_words(memory, text):
    with pytest.raises(SpecError, match=text):
        tcp_ring.TcpRing(CONTEXT, make_specs(1)[0]).broadcast(memory)


def test_overlapping_arrays():
    memory = np.zeros(9, np.float32)
    with pytest.raises(SpecError, match="out overlaps tensor"):
        tcp_ring.TcpRing(CONTEXT, make_specs(1)[0]).all_reduce(memory[:8], memory[1:])


def test_arrays_that_cannot_be_written_are_refused_before_anything_is_sent(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(100_000, np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")  # writing there raises SIGSEGV

    def work(rank, backend):
        mine = np.full(mapped.shape, rank + 1, np.float32)
        for tensor, out in [(mine, mapped), (mapped, mapped)] if rank == 0 else []:
            with pytest.raises(
                SpecError,
                match="all_reduce: out is read-only: must be an array that can be written",
            ):
                backend.all_reduce(tensor, out)
        return backend.all_reduce(mapped if rank == 0 else mine)[-1]

    assert on_all_ranks(make_specs(2), work) == [3.0, 3.0]
    assert (np.load(tmp_path / "x.npy") == 1).all()


def test_not_connected():
    with pytest.raises(CollectiveError, match="rank 0 is not connected"):
        tcp_ring.TcpRing(CONTEXT, make_specs(2)[0]).all_reduce(np.zeros(4, np.float32))
