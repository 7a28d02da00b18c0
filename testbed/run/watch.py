"""Telemetry of a run: which epochs are sampled or counted, and the rows that this gives."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from testbed.core.closing import Stacked
from testbed.core.errors import KernelError
from testbed.fabric import Fabric
from testbed.results import StackLog, Table
from testbed.run.progress import Display
from testbed.telemetry.profile import Profile
from testbed.telemetry.recorder import Recorder
from testbed.telemetry.sampler import Mode
from testbed.workloads.scenario import Scenario
from testbed.workloads.workload import Turn

__all__ = ["Watch", "mode_of"]


def mode_of(epoch: int, epochs: int) -> Mode | None:
    """How an epoch is watched: counted, sampled and not at all, in turns; a single one is sampled.

    The first epoch is often slower than all others, and the times of counted ones are not used.
    """
    return "samples" if epochs == 1 else ("counts", "samples", None)[epoch % 3]


class Watch(Stacked):
    """Watches a run's epochs; a context manager. Where BCC cannot compile it says so, and does
    nothing else.
    """

    def __init__(
        self, scenario: Scenario, fabric: Fabric, table: Table, log: StackLog, display: Display
    ) -> None:
        self._scenario, self._fabric = scenario, fabric
        self._table, self._log, self._display = table, log, display
        self._recorder: Recorder | None = None

    def _enter(self, stack: ExitStack) -> None:
        if not self._scenario.telemetry.enabled:
            return
        self._display.say("compiling telemetry's programs")
        try:
            self._recorder = stack.enter_context(Recorder(self._fabric, self._scenario.telemetry))
        except KernelError as error:
            self._display.say(f"the kernel's part is not measured: {error}")

    @contextmanager
    def epoch(self, turn: Turn) -> Iterator[None]:
        """Watch one epoch, which records its times in the table."""
        mode = mode_of(turn.epoch, self._scenario.epochs)
        if self._recorder is None or mode is None:
            yield
            return
        with self._recorder.on(mode):
            yield
            self._add(turn, mode, self._recorder.take(self._windows()))
        if mode == "samples":
            rate = self._scenario.telemetry.rate
            self._log.add(turn.trial, turn.backend, turn.epoch, rate, self._recorder.stacks)

    def _windows(self) -> Mapping[str, tuple[list[float], list[float]]]:
        """When each host, and any of them, was in a collective of the last epoch."""
        spans = self._table.collectives
        windows = {
            host.name: spans[host.rank] for host in self._fabric.plan.hosts if host.rank in spans
        }
        each = list(spans.values())
        starts = [min(column) for column in zip(*(starts for starts, _ in each), strict=True)]
        ends = [max(column) for column in zip(*(ends for _, ends in each), strict=True)]
        return {**windows, "*": (starts, ends)}

    def _add(self, turn: Turn, mode: Mode, profile: Profile) -> None:
        def add(metric: str, value: float, unit: str, node: str) -> None:
            self._table.add(
                turn.trial,
                turn.backend,
                metric,
                value,
                unit,
                epoch=turn.epoch,
                labels={"node": node},
            )

        add("sampled_time" if mode == "samples" else "counted_time", profile.seconds, "s", "all")
        for each in profile.measures(mode):
            add(each.metric, each.value, each.unit, each.node)
