"""Turns of a bench with telemetry on."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from testbed.bench.observed import Turn, windows_of
from testbed.core.closing import Stacked
from testbed.core.errors import KernelError
from testbed.core.logs import logger_of
from testbed.fabric import Fabric
from testbed.telemetry.options import TelemetryOptions
from testbed.telemetry.profile import Profile
from testbed.telemetry.recorder import Recorder

__all__ = ["Observer"]

logger = logger_of(__name__)


class Observer(Stacked):
    """Observes turns, if a bench is to be observed. A context manager.

    Where BCC cannot compile, it says so, and is false as it is without telemetry.
    """

    def __init__(self, fabric: Fabric, options: TelemetryOptions) -> None:
        self._fabric, self._options = fabric, options
        self._recorder: Recorder | None = None

    def _enter(self, stack: ExitStack) -> None:
        if not self._options.enabled:
            return
        try:
            self._recorder = stack.enter_context(Recorder(self._fabric, self._options))
        except KernelError as error:
            logger.warning("the kernel's part is not measured: %s", error)

    def __bool__(self) -> bool:
        return self._recorder is not None

    def sample(self, turn: Callable[[], Sequence[Turn]]) -> tuple[Sequence[Turn], Profile]:
        """Sample a turn; what it gives, and what was seen of it."""
        assert self._recorder
        with self._recorder.on("samples"):
            ranks = turn()
            return ranks, self._recorder.take(windows_of(ranks))

    def count(self, turn: Callable[[], object]) -> Profile:
        """Count what happens in a turn."""
        assert self._recorder
        with self._recorder.on("counts"):
            turn()
            return self._recorder.take()
