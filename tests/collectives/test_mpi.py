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


def test_what_configures_a_users_own_mpi_has_no_part_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would keep ranks from meeting: an interface to leave out, no network at all, and hosts
    whose names mean something else, or nothing, to mpirun.
    """
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi" / "mca-params.conf").write_text("btl = self\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_exclude", "docker0,lo")
    plan = plan_fabric("tests.support.topologies:Named", switch="bridge")
    with (
        Fabric(plan) as fabric,
        Workers(fabric) as workers,
        rank_workers("mpi", workers, [host.name for host in plan.hosts]) as names,
    ):
        assert names == ["mpi:client", "mpi:server.a", "mpi:server.b"]
