"""The training of a deep network in the simulator: matrix work takes the time that the scenario
says, and buckets are summed by a simulated group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.host import estimates
from testbed.results import Table
from testbed.sim.group import SimulatedGroup
from testbed.workloads.dnn.buckets import Bucket
from testbed.workloads.dnn.epoch import DNNEpoch
from testbed.workloads.dnn.gradient import draw, fill, shift_of
from testbed.workloads.dnn.scenario import DNNScenario
from testbed.workloads.measures import record_times
from testbed.workloads.simulated import Simulation
from testbed.workloads.workload import Turn

__all__ = ["SimulatedDNN"]

_COPIES = 6  # of a tensor whose frames carry it, as floats, lanes and chunks
_FLOAT = 4


class SimulatedDNN(Simulation[DNNScenario]):
    """Trains by ``[dnn]``, whose ranks enter and leave each all-reduce together."""

    def __init__(self, scenario: DNNScenario) -> None:
        super().__init__(scenario)
        table = scenario.dnn
        self.steps = table.steps
        self.capacity = max(bucket.end - bucket.start for bucket in table.buckets)

    def check(self) -> None:
        """See `Simulation.check`."""
        hosts, table = self.scenario.fabric.hosts, self.scenario.dnn
        if self.scenario.faults and "xdp-ring" in table.backends:  # frames carry their payload
            need = {"tensors": _COPIES * hosts * _FLOAT * self.capacity}
            estimates.check(need, f'fabric.hosts = {hosts}, dnn.model = "{table.model}"')

    def facts(self) -> dict[str, Any]:
        """See `Simulation.facts`."""
        table = self.scenario.dnn
        return {
            "parameters": table.architecture.parameters,
            "gradient_bytes": _FLOAT * table.architecture.parameters,
            "buckets": len(table.buckets),
            "largest_bucket_bytes": _FLOAT * self.capacity,
        }

    def epoch(self, group: SimulatedGroup, turn: Turn) -> list[DNNEpoch]:
        """See `Simulation.epoch`."""
        table, ranks = self.scenario.dnn, self.scenario.fabric.hosts
        forward, backward = table.compute / 3, table.compute * 2 / 3
        ready = [backward * share for share in self._shares()]
        clock = exposed = 0.0
        entered, left = [], []
        sent, spent = np.zeros((ranks, 3), np.int64), np.zeros(ranks)
        draws = [draw(self.scenario.scenario.seed + turn.trial, rank) for rank in range(ranks)]
        for step in range(table.steps):
            shift = shift_of(turn.epoch * table.steps + step)
            clock += forward
            free = 0.0
            for bucket, after in zip(table.buckets, ready, strict=True):
                begin = max(clock + after, free)
                done = group.all_reduce(
                    bucket.end - bucket.start, begin, partial(_values, draws, bucket, shift)
                )
                free = begin + done.seconds
                entered.append(begin)
                left.append(free)
                sent += done.sent
                spent += done.spent
            clock += backward
            exposed += free - clock
            clock = free
        steps = table.steps
        times = {
            "forward": steps * forward,
            "backward": steps * backward,
            "exposed": exposed,
            "update": 0.0,
            "other": 0.0,
            "epoch_time": clock,
            "communication_time": float(np.sum(np.subtract(left, entered))),
        }
        return [
            DNNEpoch(
                turn.epoch,
                {**times, "communication_cpu_time": float(spent[rank])},
                np.array(entered),
                np.array(left),
                {
                    "steps": steps,
                    **dict(
                        zip(("packets", "wire_bytes", "retransmissions"), row.tolist(), strict=True)
                    ),
                },
                "",
            )
            for rank, row in enumerate(sent)
        ]

    def _shares(self) -> Iterator[float]:
        """When each bucket is complete, as a share of backward's time."""
        table = self.scenario.dnn
        layers = list(reversed(table.architecture.layers))
        ends = list(accumulate(sum(layer.tensors) for layer in layers))
        work = list(accumulate(layer.macs for layer in layers))
        for bucket in table.buckets:
            if table.overlap and work[-1]:
                last = next(index for index, end in enumerate(ends) if end >= bucket.end)
                yield work[last] / work[-1]
            else:
                yield 1.0

    def record(self, table: Table, turn: Turn, ranks: Sequence[Any]) -> str:
        """See `Simulation.record`."""
        epochs: list[DNNEpoch] = [replace(each, epoch=turn.epoch) for each in ranks]
        record_times(table, turn.trial, turn.backend, epochs)
        times = epochs[0].times
        return f"{times['epoch_time']:.3g} s, {times['exposed']:.3g} s of it waiting for sums"


def _values(
    draws: Sequence[NDArray[np.float32]], bucket: Bucket, shift: int, rank: int
) -> NDArray[np.float32]:
    """Return a rank's part of a bucket, which holds what an emulated rank's does."""
    made = np.empty(bucket.end - bucket.start, np.float32)
    fill(made, draws[rank], bucket.start, bucket.end, shift)
    return made
