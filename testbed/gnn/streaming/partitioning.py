"""The streaming partitioner: passes over a graph's edges, and what they found."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.streaming import loops
from testbed.gnn.streaming.bounds import exact_bounds, sampled_bounds
from testbed.gnn.streaming.edge_policy import Degrees, Policy, State
from testbed.gnn.streaming.edges import MOST_VERTICES, Batch, Edges, Pair, check_vertices
from testbed.gnn.streaming.grouping import MOST_FILES, Block, Spill, blocks_of
from testbed.gnn.streaming.memory_plan import (
    Plan,
    batch_size,
    peak_memory,
    release_memory,
    reset_peak_memory,
    vertex_table,
)
from testbed.gnn.streaming.options import PartitionOptions
from testbed.gnn.streaming.partition_folder import PartitionWriter, make_scratch
from testbed.gnn.streaming.partition_measures import Partitioned
from testbed.gnn.streaming.policies import BuiltIn
from testbed.gnn.streaming.registry import POLICIES

__all__ = ["partition"]

B = TypeVar("B")
Progress = Callable[[str, float], None]
"""Takes the name of a pass, and the share of it that is done."""

UNASSIGNED = np.uint16(0xFFFF)
ONCE = 10
"""Bytes of a vertex while bounds are sought or a part's vertices are written."""
_BLOCK = 1 << 16  # vertices at a time


class Stream(Protocol):
    """Edges that are read as batches."""

    def batches(self, size: int) -> Iterator[Batch]:
        """See `Edges.batches`."""


def partition(
    edges: Edges,
    options: PartitionOptions,
    out: Path,
    progress: Progress = lambda name, share: None,
) -> Partitioned:
    """Partition a graph into a folder.

    :param out: A new folder; it appears when it is complete.
    :raises SpecError: The graph cannot be read, there are fewer vertices than parts, the memory is
        not enough for the vertices, or the policy gives parts that do not exist.
    :raises StorageError: The folder cannot be written.
    """
    loops.prepare()
    base, started = reset_peak_memory(), time.perf_counter()
    with (
        ThreadPoolExecutor(options.threads, "partition") as pool,
        make_scratch(out, "spill-") as spill,
    ):
        work = _Partitioning(edges, options, pool, Path(spill), progress)
        with PartitionWriter(out, options.parts, work.plan.rows) as writer:
            work.choose_masters()
            work.choose_owners(writer)
            work.finish(writer)
            seconds = time.perf_counter() - started
            found = work.measures(writer, seconds, max(0, peak_memory() - base))
            writer.publish(
                {
                    "graph": edges.name,
                    "seed": options.seed,
                    **found.to_dict(),
                    "features": None
                    if edges.features is None
                    else {
                        "dim": int(edges.features.shape[1]),
                        "dtype": str(edges.features.dtype),
                    },
                    "labels": edges.labels is not None,
                }
            )
    return found


class _Partitioning:
    """The state of one call of `partition`."""

    def __init__(
        self,
        edges: Edges,
        options: PartitionOptions,
        pool: ThreadPoolExecutor,
        place: Path,
        progress: Progress,
    ) -> None:
        self._edges, self._options, self._pool, self._place = edges, options, pool, place
        self._progress, self._clock = progress, time.perf_counter()
        self._phases: dict[str, float] = {}
        self._policy: Policy = POLICIES[options.policy](options.parts, options.seed)
        self._target = self._policy.side == "target"
        self._counted = self._policy.needs != "nothing"
        self._built_in = isinstance(self._policy, BuiltIn) and POLICIES.owns(options.policy)
        self._passes = 0
        if edges.num_vertices is not None and edges.num_vertices < options.parts:
            raise SpecError(
                f"--parts: {options.parts}: {edges.name} has {edges.num_vertices} vertices: must be"
                " one per vertex at most"
            )
        both = self._policy.side == "both"
        self._sides = (0, 1) if both else (int(self._target),)
        self._sampled: Pair = edges.sample() if edges.indptr is None or self._target else _NONE
        ids = max((int(ends.max(initial=0)) for ends in self._sampled), default=0)
        self._expected = edges.num_vertices or ids + 1
        words = -(-options.parts // 64)
        per_vertex = 2 + 8 * words + 4 * self._counted + 2 * (self._policy.needs == "neighbours")
        streamed = self._built_in and self._policy.in_order
        per_vertex += ONCE + 4 * streamed
        self.plan = Plan(options.memory, self._expected, per_vertex, options.parts, options.threads)
        self._size = batch_size(self.plan, options.parts)
        n = edges.num_vertices
        self._masters = vertex_table(np.uint16, n)
        self._degrees = vertex_table(np.uint32, n) if self._counted else None
        self._held = vertex_table(np.uint64, n, words).reshape(len(self._masters), words)
        self._hdrf = (
            loops.Hdrf(options.parts, self._masters, self._held, vertex_table(np.uint32, n))
            if streamed
            else None
        )
        self._seen, self._filled = n or 0, 0
        self._lock = threading.Lock()
        parts = options.parts
        self._state = State(
            self._expected,
            edges.num_edges or max(1, edges.nbytes // 16),
            np.zeros(parts + 1, np.uint64),
            self._masters,
            np.zeros(parts),
            np.zeros(parts),
        )
        self._cut = 0
        self._lap("sample")

    # Before the first edge has an owner

    def choose_masters(self) -> None:
        """Do the passes that the policy needs; fill the table of masters, if that is possible."""
        self._stream: Stream = self._edges
        self._state.bounds = self._ranges()
        if not self._counted:
            return
        spill: Spill | None = None
        if self._policy.needs == "neighbours" and (self._edges.indptr is None or self._target):
            spill = self._group()
        else:
            self._count()
        assert self._degrees is not None
        n = self._seen
        if n < self._options.parts:
            raise SpecError(
                f"--parts: {self._options.parts}: {self._edges.name} has {n} vertices: must be one"
                " per vertex at most"
            )
        self._state.num_vertices = n
        self._state.num_edges = int(self._degrees[:n].sum(dtype=np.int64)) // len(self._sides)
        self._state.bounds = exact_bounds(self._degrees[:n], self._options.parts)
        if self._policy.needs == "neighbours":
            self._choose(spill.blocks() if spill else blocks_of(self._edges, self.plan.grouped))
            self._passes += 1
            self._lap("masters")

    def _ranges(self) -> NDArray[np.uint64]:
        """Bounds of ranges with the same number of edges: estimated, unless degrees are known."""
        if self._edges.indptr is not None and not self._target:
            return exact_bounds(np.diff(self._edges.indptr), self._options.parts)
        return sampled_bounds(self._sampled[self._target], self._expected, self._options.parts)

    def _count(self) -> None:
        """Count degrees, in a pass over the edges unless the graph has them."""
        assert self._degrees is not None
        if self._edges.indptr is not None and self._sides == (0,):
            self._degrees[:] = np.diff(self._edges.indptr)
            return
        degrees = self._degrees

        def count(batch: Batch) -> int:
            pair = batch()
            self._see(pair)
            for side in self._sides:
                loops.count_degrees(pair[side], degrees)
            return len(pair[0])

        for _ in self._watched("degrees", self._in_order(count, self._edges), lambda n: n):
            pass
        self._passes += 1
        self._lap("degrees")

    def _group(self) -> Spill:
        """Count degrees, and group edges by the vertex whose neighbours they are."""
        assert self._degrees is not None
        degrees = self._degrees
        files = min(MOST_FILES, -(-self._state.num_edges // self.plan.grouped))
        if self._policy.whole:
            files = 1
        bounds = sampled_bounds(self._sampled[self._target], self._expected, files)
        bounds[-1] = MOST_VERTICES
        spill = Spill(self._edges, self._place, bounds, self._target)

        def sort(batch: Batch) -> Any:
            pair = batch()
            most = self._see(pair)
            loops.count_degrees(pair[self._target], degrees)
            return spill.sort(pair, most)

        sorted_ = self._in_order(sort, self._edges)
        with closing(spill):
            found = self._watched("grouping", sorted_, lambda found: len(found[0]))
            for key, other, counts in found:
                spill.write(key, other, counts)
        spill.finish(self._seen)
        self._stream = spill
        self._passes += 1
        self._lap("grouping")
        return spill

    def _choose(self, blocks: Iterable[Block]) -> None:
        assert self._degrees is not None
        state, n = self._state, self._seen
        self._masters[:n] = UNASSIGNED
        native = self._built_in and getattr(self._policy, "fennel", False)
        if self._policy.whole:
            blocks = [_joined(list(blocks))]
        for block in blocks:
            state.indices = block.indices
            if native:
                self._choose_by_fennel(block)
            else:
                state.indptr = block.indptr
                ids = np.arange(block.first, block.last, dtype=np.uint32)
                self._masters[ids] = self._masters_of(ids)
            self._progress("masters", block.last / n)
        self._filled = n

    def _choose_by_fennel(self, block: Block) -> None:
        """In rounds: threads see the masters and loads of earlier rounds, and their own."""
        state, threads = self._state, self._options.threads
        size = -(-self._seen // self._options.rounds)
        for first in range(block.first, block.last, size):
            last = min(first + size, block.last)
            ends = [first + (last - first) * i // threads for i in range(threads + 1)]
            made = self._pool.map(
                lambda begin, end, around: loops.fennel(
                    state, begin, end, block.indptr[begin - block.first :], around
                ),
                ends[:-1],
                ends[1:],
                [(first, last)] * threads,
            )
            nodes, edges = state.nodes, state.edges
            pairs = list(made)
            state.nodes = nodes + sum(each - nodes for each, _ in pairs)
            state.edges = edges + sum(each - edges for _, each in pairs)

    # Edges

    def choose_owners(self, writer: PartitionWriter) -> None:
        """Give each edge to its owner."""
        native = self._built_in and not self._policy.in_order
        owner = self._policy.owner if native else "given"  # type: ignore[attr-defined]
        self._extend(self._seen - 1)
        assigner = loops.Assigner(
            owner, self._options.parts, self._masters, self._degrees, self._held
        )

        def read(batch: Batch) -> Pair:
            pair = batch()
            self._extend(self._see(pair))
            return pair

        def assign(pair: Pair) -> Any:
            given = self._owners(*pair) if owner == "given" else None
            owners, counts, cut = assigner.assign(*pair, given)
            return *loops.scatter(*pair, owners, counts), counts, cut

        assigned: Iterator[Any]
        if self._policy.in_order:
            assigned = map(assign, self._in_order(read, self._stream))
        else:
            assigned = self._in_order(lambda batch: assign(read(batch)), self._stream)
        for src, dst, counts, cut in self._watched("edges", assigned, lambda f: len(f[0])):
            self._cut += cut
            begin = 0
            for part, count in enumerate(counts.astype(np.int64).tolist()):
                if count:
                    writer.add(part, src[begin : begin + count], dst[begin : begin + count])
                begin += count
        self._passes += 1
        self._lap("edges")
        if self._policy.in_order:
            self._settle()

    def _owners(self, src: NDArray[np.uint32], dst: NDArray[np.uint32]) -> NDArray[np.uint16]:
        if self._hdrf:
            return self._hdrf.choose(src, dst)
        n = self._filled
        degrees = None if self._degrees is None else self._degrees[:n]
        found = self._policy.get_edge_owner(src, dst, degrees, self._masters[:n])
        owners = self._checked(found, len(src), "get_edge_owner")
        if self._policy.in_order:
            loops.adopt(self._masters, src, dst, owners)
        return owners

    def _extend(self, most: int) -> None:
        """Have masters of all vertices up to one."""
        if most < self._filled:
            return
        with self._lock:
            while (first := self._filled) <= most:
                ids = np.arange(first, min(first + _BLOCK, most + 1), dtype=np.uint32)
                self._state.num_vertices = max(self._state.num_vertices, most + 1)
                in_order = self._policy.in_order
                self._masters[ids] = UNASSIGNED if in_order else self._masters_of(ids)
                self._filled = first + len(ids)

    def _settle(self) -> None:
        """Have masters of vertices without edges."""
        for first in range(0, self._seen, _BLOCK):
            ids = np.arange(first, min(first + _BLOCK, self._seen), dtype=np.uint32)
            masters = self._masters[ids]
            self._masters[ids] = np.where(masters == UNASSIGNED, self._masters_of(ids), masters)

    def _masters_of(self, ids: NDArray[np.uint32]) -> NDArray[np.uint16]:
        degrees: Degrees | None = None if self._degrees is None else self._degrees[ids]
        found = self._policy.get_master(ids, degrees, self._state)
        return self._checked(found, len(ids), "get_master")

    def _checked(self, found: Any, count: int, where: str) -> NDArray[np.uint16]:
        array = np.asarray(found)
        if array.shape != (count,) or array.dtype.kind not in "iu":
            what = f"{array.dtype} of shape {array.shape}"
        elif count and not (int(array.min()) >= 0 and int(array.max()) < self._options.parts):
            what = f"parts {array.min()} to {array.max()}"
        else:
            return np.array(array, np.uint16)  # a copy: it may be a view of the policy's own
        raise SpecError(
            f"policy {self._options.policy}: {where} returned {what}: must be {count} parts, 0 to"
            f" {self._options.parts - 1}"
        )

    # After the last edge

    def finish(self, writer: PartitionWriter) -> None:
        """Write each part's vertices, with what they carry."""
        n, edges = self._seen, self._edges
        if n < self._options.parts:
            raise SpecError(
                f"--parts: {self._options.parts}: {edges.name} has {n} vertices: must be one per"
                " vertex at most"
            )
        for name, values in (("features", edges.features), ("labels", edges.labels)):
            if values is not None and len(values) < n:
                raise SpecError(
                    f"{edges.name}: {name} of {len(values)} vertices: must be {n}, one per vertex"
                )
        self._mirrors = np.zeros(self._options.parts, np.int64)
        masters = self._masters[:n]
        for part in range(self._options.parts):
            bit = np.uint64(part % 64)
            held = self._held[:n, part // 64]
            own = _where(n, lambda rows: masters[rows] == part)  # noqa: B023
            mirrors = _where(n, lambda rows: held[rows] >> bit & np.uint64(1))  # noqa: B023
            self._mirrors[part] = sum(map(len, mirrors))
            vertices = np.concatenate([*own, *mirrors])
            writer.finish(part, vertices, masters[vertices], edges.features, edges.labels)
            self._progress("vertices", (part + 1) / self._options.parts)
        self._lap("vertices")

    def measures(self, writer: PartitionWriter, seconds: float, peak: int) -> Partitioned:
        """What there is to say."""
        n, m, parts = self._seen, int(writer.edges.sum()), self._options.parts
        own = np.bincount(self._masters[:n], minlength=parts)
        size = self._edges.nbytes or 8 * m
        return Partitioned(
            policy=self._options.policy,
            parts=parts,
            num_vertices=n,
            num_edges=m,
            seconds=seconds,
            edges_per_second=m / seconds,
            mb_per_second=size / 1e6 / seconds,
            replication_factor=(n + int(self._mirrors.sum())) / n,
            cut_edges=self._cut,
            cut_share=self._cut / m if m else 0.0,
            vertex_balance=float(own.max() * parts / n),
            edge_balance=float(writer.edges.max() * parts / m) if m else 1.0,
            masters=own.tolist(),
            mirrors=self._mirrors.tolist(),
            edges=writer.edges.tolist(),
            passes=self._passes,
            phases=self._phases,
            peak_memory_bytes=peak,
            memory_bytes=self.plan.limit,
        )

    # Passes

    def _see(self, pair: Pair) -> int:
        """Note vertices; return the largest number of one.

        :raises SpecError: It is larger than the graph says.
        """
        most = max(int(ends.max(initial=0)) for ends in pair)
        known = self._edges.num_vertices
        if known is None:
            with self._lock:
                self._seen = max(self._seen, most + 1 if len(pair[0]) else 0)
        elif most >= known:
            for ends in pair:
                check_vertices(ends, known, self._edges.name)
        return most

    def _in_order(self, work: Callable[[Batch], B], stream: Stream) -> Iterator[B]:
        """Yield the results of batches, which threads work on a few ahead."""
        pending: deque[Future[B]] = deque()
        try:
            for batch in stream.batches(self._size):
                pending.append(self._pool.submit(work, batch))
                if len(pending) > self._options.threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _watched(self, name: str, found: Iterator[B], count: Callable[[B], int]) -> Iterator[B]:
        done, total = 0, self._edges.num_edges or self._state.num_edges
        for each in found:
            done += count(each)
            self._progress(name, min(1.0, done / max(total, 1)))
            yield each

    def _lap(self, name: str) -> None:
        release_memory()
        now = time.perf_counter()
        self._phases[name], self._clock = now - self._clock, now


_NONE: Pair = (np.zeros(0, np.uint32), np.zeros(0, np.uint32))


def _where(n: int, found: Callable[[slice], NDArray[Any]]) -> list[NDArray[np.uint32]]:
    """The vertices, of n, for which something holds; a few at a time."""
    return [
        (np.flatnonzero(found(slice(first, first + _BLOCK))) + first).astype(np.uint32)
        for first in range(0, n, _BLOCK)
    ]


def _joined(blocks: list[Block]) -> Block:
    """One block of all vertices."""
    sums = np.cumsum([0, *(int(block.indptr[-1]) for block in blocks)])
    rows = [block.indptr[:-1] + begin for block, begin in zip(blocks, sums, strict=False)]
    indices = np.concatenate([block.indices for block in blocks])
    return Block(blocks[0].first, blocks[-1].last, np.concatenate([*rows, sums[-1:]]), indices)
