"""`Kind`: the two kinds of training, and what a report has to call things in each."""

from dataclasses import dataclass

from testbed.results import Run

__all__ = ["DATA_PARALLEL", "FULL_GRAPH", "IN_KERNEL", "UNSPLIT", "Kind", "kind_of"]

IN_KERNEL = ("xdp-ring", "pinch")
"""Transports that work inside the kernel; all others are sockets."""

UNSPLIT = ("gloo", "mpi")
"""Transports whose libraries do not say how long they wait for peers: waiting and moving data are one time."""


@dataclass(frozen=True)
class Kind:
    """A kind of training.

    :param compute: Parts of an epoch's time that are computing, in order.
    :param communication: Parts that are communication, in order.
    :param noun: What communication is.
    :param every: What its amounts are given for.
    :param same: What a figure of losses says; `evaluated`: one of accuracies.
    """

    compute: tuple[str, ...]
    communication: tuple[str, ...]
    noun: str
    every: str
    same: str
    evaluated: str

    @property
    def parts(self) -> tuple[str, ...]:
        """What an epoch's time is split into; the parts add up to it."""
        *before, update = self.compute
        return (*before, *self.communication, update, "other")


DATA_PARALLEL = Kind(
    compute=("sampling", "forward", "backward", "update"),
    communication=("quantize", "communicate", "wait", "dequantize"),
    noun="all-reduce",
    every="a step",
    same="All transports get the same minibatches from the same weights, so that the lines should coincide.",
    evaluated="From sampled neighbourhoods, after each epoch.",
)
FULL_GRAPH = Kind(
    compute=("forward", "backward", "update"),
    communication=("quantize", "send", "wait", "aggregate", "dequantize", "all_reduce"),
    noun="communication",
    every="an epoch",
    same="All transports train on the whole graph from the same weights, so that the lines should coincide.",
    evaluated="From whole neighbourhoods, after each epoch.",
)


def kind_of(run: Run) -> Kind:
    """Return the kind of a run's training."""
    return FULL_GRAPH if run.full_graph else DATA_PARALLEL
