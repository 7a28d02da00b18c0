"""How fast layers of sampled training are: our own beside torch-geometric's, on one thread."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from testbed.bench.cut import GRAPHS
from testbed.core.errors import SpecError
from testbed.core.medians import Median, compare
from testbed.gnn.datasets import DATASETS
from testbed.gnn.graph import GraphData
from testbed.gnn.model import Sage
from testbed.gnn.native_sage import NativeSage, computes_halves
from testbed.gnn.options import SampledModelSpec
from testbed.gnn.sampling import Block, Sampler, key_of

__all__ = ["Row", "check", "header_line", "measure", "row_line"]

_MOST_REPEAT, _MOST_BATCH = 10_000, 1 << 20


@dataclass(frozen=True)
class Row:
    """One kind of layers.

    :param forward: Seconds of a minibatch's loss, and `backward`, of its gradient.
    :param allocated: Bytes that layers have allocated in a minibatch, after the largest one.
    """

    layers: str
    forward: Median
    backward: Median
    both: Median
    allocated: int

    def to_dict(self) -> dict[str, object]:
        """Return what the JSON has of it."""
        return asdict(self)


class CsrSage(Sage):
    """torch-geometric's layers on an adjacency in CSR, for which it has one fused loop."""

    def _layer(self, depth: int, x: Tensor, block: Block) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CSR is in beta
            adjacency = torch.sparse_csr_tensor(
                torch.from_numpy(block.indptr),
                torch.from_numpy(block.senders.astype(np.int64)),
                torch.ones(len(block.senders)),
                (block.num_targets, len(block.sources)),
            )
            return self.activated(depth, self.layers[depth]((x, x[: block.num_targets]), adjacency))


def check(dataset: str, batch: int, repeat: int) -> None:
    """Check the options of `measure`.

    :raises SpecError: One is out of range.
    """
    if dataset not in GRAPHS:
        raise SpecError(f"--dataset: {dataset!r}: must be one of {', '.join(GRAPHS)}")
    if not 1 <= batch <= _MOST_BATCH:
        raise SpecError(f"--batch: {batch}: must be 1 to {_MOST_BATCH}")
    if not 1 <= repeat <= _MOST_REPEAT:
        raise SpecError(f"--repeat: {repeat}: must be 1 to {_MOST_REPEAT}")


def measure(dataset: str, spec: SampledModelSpec, batch: int, repeat: int) -> Iterator[Row]:
    """Time a loss and its gradient, in turns, on minibatches that all have in common.

    :param dataset: With its default options; neighbourhoods are those that training would sample.
    :param repeat: Minibatches.
    :raises SpecError: The data do not exist.
    """
    torch.set_num_threads(1)
    graph = GraphData.load(DATASETS[dataset](name=dataset).prepare())
    models = dict(_models(spec, graph))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for _, minibatch in zip(range(-1, repeat), _minibatches(graph, spec, batch), strict=False):
        for name, model in models.items():
            times[name].append(_timed(model, *minibatch))
    for name, model in models.items():
        kept = times[name][1:]
        sums = [one + other for one, other in kept]
        forward, backward = zip(*kept, strict=True)
        yield Row(
            *(name, Median.of(forward), Median.of(backward), Median.of(sums)),
            _allocated(partial(_timed, model, *minibatch)),
        )


def _models(spec: SampledModelSpec, graph: GraphData) -> Iterator[tuple[str, Sage]]:
    sizes = graph.feature_dim, graph.num_classes
    yield "torch-geometric", Sage(spec, *sizes)
    yield "torch-geometric, CSR", CsrSage(spec, *sizes)
    yield "native", NativeSage(spec, *sizes)
    kind = torch.bfloat16 if computes_halves() else torch.float32
    yield "native, bfloat16", NativeSage(spec, *sizes, kind=kind, rows_of=torch.bfloat16)


Made = tuple[dict[torch.dtype, Tensor], list[Block], Tensor]


def _minibatches(graph: GraphData, spec: SampledModelSpec, batch: int) -> Iterator[Made]:
    """The largest of the first ten comes first, for memory that is kept."""
    sampler, rng = Sampler(graph), np.random.default_rng(1)

    def made(number: int) -> Made:
        seeds = rng.permutation(graph.train)[:batch]
        blocks = sampler.blocks(seeds, spec.fanout, key_of(number))
        x = torch.from_numpy(graph.x[blocks[0].sources])
        features = {torch.float32: x, torch.bfloat16: x.bfloat16()}
        return features, blocks, torch.from_numpy(graph.y[seeds])

    few = [made(number) for number in range(10)]
    yield max(few, key=lambda each: len(each[1][0].senders))
    yield from few
    yield from map(made, count(10))


def _timed(
    model: Sage, features: dict[torch.dtype, Tensor], blocks: Sequence[Block], y: Tensor
) -> tuple[float, float]:
    x = features[getattr(model, "rows_of", torch.float32)]
    model.zero_grad(set_to_none=False)
    started = time.perf_counter()
    loss = functional.cross_entropy(model.train()(x, blocks), y)
    between = time.perf_counter()
    loss.backward()  # type: ignore[no-untyped-call]
    return between - started, time.perf_counter() - between


def _allocated(work: Callable[[], object]) -> int:
    with torch.autograd.profiler.profile(use_kineto=False, profile_memory=True) as found:
        work()
    return sum(max(each.self_cpu_memory_usage, 0) for each in found.key_averages())


def header_line() -> str:
    """Name the columns of `row_line`."""
    return (
        f"# {'layers':<21} {'forward_ms':>10} {'backward_ms':>11} {'both_ms':>8} {'95%':>15}"
        f" {'n':>4} {'times as fast':>13} {'allocated_kB':>12}"
    )


def row_line(row: Row, first: Row) -> str:
    """One kind of layers: medians, and how many times as fast it is as the first kind."""
    both, how = row.both, compare(row.both, first.both)
    spread = f"{both.low * 1e3:.1f}-{both.high * 1e3:.1f}"
    ratio = "-" if row is first else f"{how.ratio:.2f}{how.note}"
    return (
        f"  {row.layers:<21} {row.forward.value * 1e3:>10.1f} {row.backward.value * 1e3:>11.1f}"
        f" {both.value * 1e3:>8.1f} {spread:>15} {both.count:>4} {ratio:>13}"
        f" {row.allocated / 1e3:>12.0f}"
    )
