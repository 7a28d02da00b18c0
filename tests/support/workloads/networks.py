"""A network that is small enough for tests, and a backend of one rank."""

from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.workloads.dnn.architectures import Architecture, Layer

SMALL = Architecture(
    (
        Layer("embedding", (200_000,)),
        Layer("attention", (), 1000),
        Layer("wide", (300_000, 17), 3000),
        Layer("head", (5000, 3), 500),
    ),
    "a sample",
)


class Alone(Backend):
    """An all-reduce of one rank: the sum is its own tensor, with `error` added."""

    name = "alone"

    def __init__(self, context, spec, error: float = 0.0) -> None:
        super().__init__(context, spec)
        self.error, self.sizes = error, []

    def connect(self) -> None:
        pass

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        self.sizes.append(tensor.size)
        out[:] = tensor
        out[-1] += self.error

    def counters(self) -> Counters:
        return Counters(packets=len(self.sizes))

    def close(self) -> None:
        pass
