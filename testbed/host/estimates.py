"""Estimates of how much memory something will need, made before any of it is allocated, and the
limit.

All estimates are here. They are upper bounds, in bytes, of the arrays that grow with what a user
asks for; factors other than array sizes were measured (docs/scenarios.md, Memory). Everything else
must fit into the share that is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from testbed.core.errors import SpecError
from testbed.host.machine import free_memory

__all__ = [
    "EVALUATION_BATCH",
    "HASHED",
    "SHARE",
    "VALIDATION_BATCH",
    "Graph",
    "Model",
    "allowance",
    "check",
    "data_parallel",
    "drawn",
    "exchanged",
    "full_graph",
    "gradients",
    "hashed",
    "read",
    "tensor_copies",
]

SHARE: Final = 0.8
"""Of the memory that is available: what may be asked for."""

EVALUATION_BATCH: Final = 4096  # vertices whose whole neighbourhoods are gathered at once
VALIDATION_BATCH: Final = 512  # vertices whose sampled neighbourhoods are

FLOAT: Final = 4
LABEL: Final = 8  # of a one-hot row
PROCESSES: Final = 512 << 20  # the controller and the forkserver
WORKER: Final = 64 << 20  # a rank's private memory, socket buffers included
PARAMETER: Final = 16  # weight, gradient, and Adam's two moments
HASHED: Final = 1 << 14  # texts that are hashed at a time
HASHED_FEATURE: Final = 20  # while they become vectors, first of doubles
DRAWN_EDGE: Final = 160  # while edges become an adjacency
PARTITIONED_ENTRY: Final = (
    45  # per adjacency entry, while the graph is partitioned and the partition measured
)
TAKEN_ENTRY: Final = 40  # while a rank extracts its part of the graph: each rank reads all of it
LOCAL_ENTRY: Final = 12  # a layer's own sparse matrix: column, value, and half a row
MAPPED: Final = 16  # per row and element of an exchange: lanes, accumulators and received rows
TENSOR_COPIES, REFERENCES = 3, 2  # of a bench's tensor: per rank and backend, and in all
CASE_ROW, CASE_EXCHANGE, CASE_ENTRY = (
    40,
    16,
    48,
)  # of a bench's embeddings: per element, per element and exchange, per entry


@dataclass(frozen=True)
class Graph:
    """Sizes of a graph.

    :param entries: Entries of the adjacency: an edge has two.
    :param crowd: The largest number of entries of as many consecutive vertices as are evaluated at
        once.
    """

    vertices: int
    entries: int
    features: int
    crowd: int

    @property
    def mapped(self) -> int:
        """Bytes of its files, which all processes share."""
        return FLOAT * self.vertices * self.features + 4 * self.entries + 24 * self.vertices


@dataclass(frozen=True)
class Model:
    """Sizes of a model.

    :param widths: Widths of the rows between layers: features, hidden, ..., classes.
    :param copies: Models that a rank keeps, one per backend.
    """

    parameters: int
    widths: Sequence[int]
    copies: int


def allowance() -> int:
    """Return the limit in bytes."""
    return int(SHARE * free_memory())


def check(need: Mapping[str, int], cause: str) -> None:
    """Check that there is enough memory.

    :param need: Bytes by purpose.
    :param cause: The keys that determine the need, with their values, for the error.
    :raises SpecError: There is not; the text has the estimate and the limit.
    """
    most = allowance()
    if sum(need.values()) > most:
        largest = sorted(need.items(), key=lambda part: -part[1])[:3]
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in largest)
        raise SpecError(
            f"{cause}: needs about {_gib(sum(need.values()))} of memory ({parts}): must be at most"
            f" {_gib(most)}, {SHARE:.0%} of what is available"
        )


def tensor_copies(hosts: int, backends: int) -> int:
    """Return how many copies of a tensor a bench of all-reduces holds, on all ranks together."""
    return TENSOR_COPIES * hosts * backends + REFERENCES


def hashed(texts: int, features: int) -> dict[str, int]:
    """Estimate the memory for hashing texts into features; see `testbed.gnn.features`."""
    return {"features": (FLOAT * texts + HASHED_FEATURE * min(texts, HASHED)) * features}


def read(vertices: int, features: int, labels: int) -> dict[str, int]:
    """Estimate the memory for reading sparse features and one-hot labels; features become dense,
    and are copied in parts.
    """
    return {"features": 3 * FLOAT * vertices * features, "labels": LABEL * vertices * labels}


def drawn(vertices: int, edges: int, features: int) -> dict[str, int]:
    """Estimate the memory for generating a graph; see `testbed.gnn.synthetic`."""
    return {"features": FLOAT * vertices * features, "edges": DRAWN_EDGE * edges}


def data_parallel(
    graph: Graph, model: Model, hosts: int, workers: int, batch: int, fanout: Sequence[int]
) -> dict[str, int]:
    """Estimate the memory for data-parallel training, on all ranks.

    :param workers: Processes of the ranks; mpi has separate ones. Minibatches: sampled
    neighbourhoods without duplicate vertices, gathered, with a message per edge. Evaluation is on
    one rank, and has a copy of all features.
    """
    targets, minibatch = min(graph.vertices, max(batch, VALIDATION_BATCH)), 0
    for limit, (inputs, outputs) in zip(
        fanout, reversed(list(pairwise(model.widths))), strict=True
    ):
        edges = min(graph.entries, targets * limit)
        sources = min(graph.vertices, targets + edges)
        minibatch += (
            FLOAT * (inputs * (sources + edges + targets) + 2 * outputs * targets) + 24 * edges
        )
        targets = sources
    widest, gathered = max(model.widths), graph.crowd + min(graph.vertices, graph.crowd)
    return {
        "graph": graph.mapped,
        "workers": PROCESSES + workers * WORKER,
        "models": hosts * model.copies * (PARAMETER * model.parameters + 8 * graph.vertices),
        "all-reduce": hosts * PARAMETER * model.parameters,
        "minibatches": hosts * minibatch,
        "evaluation": FLOAT * (graph.vertices * (graph.features + 2 * widest) + gathered * widest),
    }


def gradients(parameters: int, largest: int, hosts: int, workers: int) -> dict[str, int]:
    """Estimate the memory for summing a gradient in buckets, on all ranks.

    :param largest: Elements of the largest bucket.
    :param workers: Processes of the ranks; mpi has separate ones.
    """
    return {
        "workers": PROCESSES + workers * WORKER,
        "gradients and weights": 2 * FLOAT * workers * parameters,
        "all-reduce": hosts * PARAMETER * largest,
    }


def full_graph(graph: Graph, model: Model, hosts: int, dims: Sequence[int]) -> dict[str, int]:
    """Estimate the memory for full-graph training, on all ranks.

    :param dims: Elements of a row, for each exchange.
    """
    owned = -(-graph.vertices // hosts)
    halo = min(graph.vertices, graph.entries // hosts)
    layers = len(model.widths) - 1
    return {
        "graph": graph.mapped,
        "partition": PARTITIONED_ENTRY * graph.entries,
        "workers": PROCESSES + hosts * WORKER,
        "parts": hosts * (TAKEN_ENTRY * graph.entries + FLOAT * owned * graph.features),
        "models": (
            hosts * model.copies * PARAMETER * model.parameters
            + model.copies * layers * LOCAL_ENTRY * graph.entries
        ),
        "all-reduce": hosts * PARAMETER * model.parameters,
        "activations": (
            hosts
            * FLOAT
            * owned
            * sum(inputs + 5 * outputs for inputs, outputs in pairwise(model.widths))
        ),
        "exchanges": hosts * MAPPED * (owned + halo) * sum(dims),
    }


def exchanged(rows: int, dim: int, ranks: int, exchanges: int, entries: int) -> dict[str, int]:
    """Estimate the memory for a bench of exchanges.

    :param rows: Maximum number that a rank owns or receives; `ranks`: how many ranks do so.
    :param entries: Entries of the adjacency between ranks.
    """
    return {
        "embeddings": ranks * rows * dim * (CASE_ROW + CASE_EXCHANGE * exchanges),
        "edges": CASE_ENTRY * entries + 2 * CASE_ROW * rows * ranks,
    }


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
