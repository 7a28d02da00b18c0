"""The workers in which a backend's ranks run: the hosts' own, or for ``mpi`` those that mpirun
starts.
"""

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from testbed.collectives.mpi import agent as mpi_agent
from testbed.collectives.mpi.mpi import RANKS_VARIABLE, initialize
from testbed.core.errors import CollectiveError, WorkerTimeout
from testbed.core.logs import logger_of, timed
from testbed.fabric import Fabric
from testbed.host.paths import ROOT
from testbed.host.processes import RUN_VARIABLE
from testbed.worker import Workers

__all__ = ["MPI_PARAMETERS", "rank_workers"]

logger = logger_of(__name__)

START_TIMEOUT = 60.0  # seconds
STOP_TIMEOUT = 5.0  # seconds

MPI_PARAMETERS = {
    # Only TCP, only over the fabric: ranks on one machine would otherwise share memory.
    "btl": "tcp,self",
    "pml": "ob1",
    "btl_tcp_if_include": "eth0",
    "oob_tcp_if_include": "eth0",
    # Ranks share cores: one that waits yields the CPU.
    "mpi_yield_when_idle": "1",
    # mpirun itself starts all daemons, because only it can see the holders' process ids.
    "plm_rsh_no_tree_spawn": "1",
}

_FOREIGN = ("OMPI_", "PMIX_", "PRTE_", "OPAL_", "ORTE_", "PMI_", "SLURM_", "PBS_", "LSB_")
"""Beginnings of variables by which Open MPI, or a batch system around it, is configured elsewhere:
what a user's other programs need, such as an interface to leave out, does not fit a fabric.
"""
_NO_FILES = {
    "OMPI_MCA_mca_base_param_files": "none",
    "PMIX_MCA_mca_base_param_files": "none",
}
"""Let nobody's ``~/.openmpi/mca-params.conf`` have a part in it either."""


@contextmanager
def rank_workers(backend: str, workers: Workers, hosts: Sequence[str]) -> Iterator[list[str]]:
    """Provide the workers in which a backend's ranks run.

    :param backend: Its name.
    :param hosts: The hosts' names in rank order.
    :returns: The workers' names in rank order.
    """
    if backend != "mpi":
        yield list(hosts)
        return
    with mpirun(workers, hosts) as names:
        yield names


@contextmanager
def mpirun(workers: Workers, hosts: Sequence[str]) -> Iterator[list[str]]:
    """Start one MPI rank per host, each a worker named ``mpi:<host>``.

    mpirun runs in the first host's namespaces, its daemons in the others': MPI's traffic is on the
    fabric.

    :raises CollectiveError: There is no mpirun.
    :raises WorkerTimeout: The ranks did not connect in time, or mpirun has ended; the text has its
        output.
    """
    if shutil.which("mpirun") is None:
        raise CollectiveError(
            "backend 'mpi' needs mpirun: apt-get install openmpi-bin python3-mpi4py"
        )
    names = {f"mpi:{host}": host for host in hosts}
    aliases = {host: f"testbed-rank-{rank}" for rank, host in enumerate(hosts)}
    log = workers.fabric.directory / "mpirun.log"
    line = shlex.join(command(workers, aliases))
    logger.debug("%s: %s", hosts[0], line)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, mpi_agent.__file__, aliases[hosts[0]], line],
            env=environment(workers.fabric, aliases),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # like workers: no autogroup of its own
        )
    patience = 0.0  # for one that has not come to work
    try:
        try:
            workers.expect(names, START_TIMEOUT, process.pid)
        except WorkerTimeout as error:
            ended = process.poll()
            what = str(error) if ended is None else f"mpirun ended with status {ended}"
            said = log.read_text(errors="replace", encoding="utf-8").strip()[-2000:]
            raise WorkerTimeout(f"{what}; mpirun said: {said}") from error
        try:
            with timed(logger, logging.INFO, "mpirun: MPI_Init of %d ranks", len(names)):
                workers.call_all(initialize, list(names), timeout=START_TIMEOUT)
            yield list(names)
            patience = STOP_TIMEOUT
        finally:
            workers.dismiss(name for name in names if name in workers)
    finally:
        end(process, patience)


def command(workers: Workers, aliases: Mapping[str, str]) -> list[str]:
    """Return mpirun's command line: one application context per host, so that each rank gets its
    own name.

    :param aliases: What mpirun calls each host: a host of a fabric may be called ``localhost``, or
        by what is no name of a host elsewhere.
    """
    # mpirun splits the agent's command at blanks, and knows no quotes; the run's folder has none.
    agent = workers.fabric.directory / "mpi_agent.sh"
    agent.write_text(
        f'exec {shlex.join([sys.executable, mpi_agent.__file__])} "$@"\n', encoding="utf-8"
    )
    parameters = {
        **MPI_PARAMETERS,
        "plm_rsh_agent": f"sh {agent}",
        "orte_tmpdir_base": str(workers.fabric.directory),
    }
    line = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--leave-session-attached"]
    for key, value in parameters.items():
        line += ["--mca", key, value]
    for index, (host, alias) in enumerate(aliases.items()):
        line += [":"] if index else []
        line += ["-host", alias, "-np", "1", "-x", RANKS_VARIABLE]
        line += [
            sys.executable,
            "-m",
            "testbed.worker",
            "--connect",
            str(workers.path),
            "--name",
            f"mpi:{host}",
        ]
    return line


def environment(fabric: Fabric, aliases: Mapping[str, str]) -> dict[str, str]:
    """Return mpirun's environment, in which the agent finds the hosts."""
    pids = (f"{alias}={fabric.hosts[host].pid}" for host, alias in aliases.items())
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)},
        **_NO_FILES,
        RUN_VARIABLE: fabric.run_id,
        mpi_agent.PIDS_VARIABLE: ",".join(pids),
        RANKS_VARIABLE: ",".join(aliases),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


def end(process: "subprocess.Popen[bytes]", patience: float) -> None:
    """Wait for mpirun to exit by itself; after so many seconds ask it to, and finally kill it."""
    for number, seconds in (
        (None, patience),
        (signal.SIGTERM, STOP_TIMEOUT),
        (signal.SIGKILL, None),
    ):
        if number is not None:
            process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
