"""``manifest.json`` of a run, whose status is up to date at any time."""

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from testbed.core.errors import StorageError
from testbed.plan import FabricPlan
from testbed.results import FaultLog, RunFolder, StackLog, Table, digest
from testbed.workloads.scenario import Scenario

__all__ = ["Output", "facts", "manifested"]

Output = Table | FaultLog | StackLog


def facts(scenario: Scenario, plan: FabricPlan, command: Sequence[str]) -> dict[str, Any]:
    """Return the part of the manifest that follows from the scenario."""
    return {
        "scenario": scenario.model_dump(mode="json"),
        "command": list(command),
        "seed": scenario.scenario.seed,
        "plan_hash": digest(plan.to_dict()),
    }


@contextmanager
def manifested(
    folder: RunFolder,
    manifest: dict[str, Any],
    outputs: Sequence[Output],
    found: Mapping[str, Any],
) -> Iterator[None]:
    """Keep the status in ``manifest.json`` up to date: running, then complete, failed (with the
    error) or interrupted.

    In each case, the measurements so far are kept.

    :param found: What only the run can tell; it is added at the end.
    """
    manifest = {**manifest, "status": "running", "started": now()}
    folder.write_manifest(manifest)
    started = time.monotonic()

    def end(status: str, error: str | None = None) -> None:
        seconds = round(time.monotonic() - started, 3)
        folder.write_manifest(
            {
                **manifest,
                **found,
                "status": status,
                "error": error,
                "finished": now(),
                "seconds": seconds,
            }
        )

    try:
        yield
        for output in outputs:
            output.write(folder)
    except BaseException as error:
        # A full disk must not hide the original error, which it may have caused.
        for output in outputs:
            if output and not isinstance(error, StorageError):
                with suppress(StorageError):
                    output.write(folder)
        with suppress(StorageError):
            if isinstance(error, Exception):
                end("failed", str(error))
            else:
                end("interrupted")
        raise
    end("complete")


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
