"""An mpirun that does not start its ranks."""

import os
from pathlib import Path

import pytest

from testbed.collectives.mpi.launch import rank_workers
from testbed.core.errors import WorkerTimeout
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.worker import Workers

pytestmark = pytest.mark.net


def test_an_mpirun_that_exits_early_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho there are no slots\nexit 7\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        Fabric(plan_fabric("star", 2, "bridge")) as fabric,
        Workers(fabric) as workers,
        pytest.raises(WorkerTimeout) as refused,
        rank_workers("mpi", workers, ["h1", "h2"]),
    ):
        pass
    assert str(refused.value) == ("mpirun ended with status 7; mpirun said: there are no slots")
