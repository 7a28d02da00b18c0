"""The controller's side: start a worker in every host and switch, call functions in them, notice when one dies."""

import itertools
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from testbed.errors import SpecError, WorkerDied, WorkerTimeout
from testbed.worker.messages import Call, Failure, Hello, Progress, Result, Stop, Welcome

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Worker", "Workers"]

START_TIMEOUT = 30.0  # seconds; a loaded box may take long to start 64 interpreters
STOP_TIMEOUT = 2.0  # seconds for closing resources, before SIGKILL
LOG_TAIL = 2000  # characters


class Worker:
    """One worker, as the controller sees it."""

    def __init__(
        self,
        workers: "Workers",
        name: str,
        node: str,
        process: subprocess.Popen[bytes] | None,
        log: Path | None,
    ) -> None:
        self.name = name
        self.node = node
        self.process = process  # None: started by something else
        self.pid = process.pid if process else 0
        self.connection: Connection | None = None
        self.pending: set[int] = set()  # numbers of calls without an answer
        self._workers = workers
        self._log = log

    def call(
        self,
        function: Callable[..., Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str, Any], None] | None = None,
        **arguments: Any,
    ) -> Any:
        """Call ``function(context, **arguments)`` in the worker: :meth:`Workers.call_all` for one."""
        answers = self._workers.call_all(
            function, {self.name: arguments}, timeout=timeout, on_progress=on_progress
        )
        return answers[self.name]

    def died(self) -> WorkerDied:
        """The error to raise when the connection has ended."""
        status = None
        if self.process:
            # The connection ends a moment before the process can be waited for.
            with suppress(subprocess.TimeoutExpired):
                status = self.process.wait(STOP_TIMEOUT)
        log = self._log.read_text(errors="replace")[-LOG_TAIL:].strip() if self._log else ""
        return WorkerDied(self.name, status, log)

    def stop(self) -> None:
        """Ask an idle worker to stop; kill one that is busy, since what it waits for may never come."""
        if self.pending and self.process:
            self.process.kill()
        elif self.connection:
            with suppress(OSError):
                self.connection.send(Stop())

    def close(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic) for the process to end, then kill it."""
        if self.process:
            try:
                self.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.connection:
            self.connection.close()


class Workers(Mapping[str, Worker]):
    """All workers of a fabric, by name. A context manager; not for use by several threads.

    Workers die with the thread that entered the context (PR_SET_PDEATHSIG), so enter it in one that lasts.

    :param fabric: A fabric that is up.
    :param affinity: ``rank`` binds the worker of rank r, and with it its softirqs, to CPU r modulo the number of
        CPUs; ``none`` leaves it to the scheduler.
    :raises SpecError: ``affinity`` is neither.
    """

    def __init__(self, fabric: "Fabric", affinity: Literal["rank", "none"] = "none") -> None:
        if affinity not in ("rank", "none"):
            raise SpecError(f"affinity: {affinity!r} is unknown; allowed are rank, none")
        self.fabric = fabric
        self.path = fabric.directory / "workers.sock"
        self._affinity = affinity
        self._workers: dict[str, Worker] = {}
        self._numbers = itertools.count()
        self._key = secrets.token_bytes(32)

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            # The directory is root's alone; the key is a second lock, and tells a worker of another run.
            self.path.with_name(self.path.name + ".key").write_bytes(self._key)
            self._listener.bind(str(self.path))
            self._listener.listen(socket.SOMAXCONN)
            names = [node.name for node in (*self.fabric.plan.hosts, *self.fabric.plan.switches)]
            for name in names:
                self._workers[name] = self._start(name)
            self._accept(set(names), START_TIMEOUT)
            self.fabric.workers = self
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def call_all(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Mapping[str, Any]] | Iterable[str],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str, Any], None] | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> dict[str, Any]:
        """Call ``function(context, **arguments[name])`` in several workers at once.

        The first exception that arrives is raised, and the answers of the other workers are dropped when they come.

        :param function: A module-level function, sent by name.
        :param arguments: Keyword arguments by worker's name, or names alone.
        :param timeout: Seconds until all have to have answered.
        :param on_progress: Called with a worker's name and what its function gave to ``context.progress``.
        :param errors: ``return`` puts the exceptions of functions among the results instead of raising the first.
        :return: Results by worker's name, in the order of ``arguments``.
        :raises WorkerDied: A worker of the fabric died, whether or not it was called.
        :raises WorkerTimeout: The time is over.
        """
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise TypeError(
                f"{function.__module__}.{function.__qualname__}: workers cannot import it by this name"
            )
        if not isinstance(arguments, Mapping):
            arguments = {name: {} for name in arguments}
        number = next(self._numbers)
        for name, keywords in arguments.items():
            worker = self._workers[name]
            self._send(worker, Call(number, function.__module__, function.__qualname__, dict(keywords)))
            worker.pending.add(number)
        answers: dict[str, Any] = {}
        for worker, message in self._messages(timeout, lambda: [n for n in arguments if n not in answers]):
            if isinstance(message, Progress):
                if message.number == number and on_progress:
                    on_progress(worker.name, message.value)
                continue
            worker.pending.discard(message.number)
            if message.number != number:
                continue
            if isinstance(message, Result):
                answers[worker.name] = message.value
            else:
                message.error.add_note(f"in worker {worker.name}:\n{message.traceback}")
                if errors == "raise":
                    raise message.error
                answers[worker.name] = message.error
        return {name: answers[name] for name in arguments}

    def expect(self, names: Mapping[str, str], timeout: float = START_TIMEOUT) -> None:
        """Let workers join that something else has started, such as mpirun.

        They are started inside the namespaces of their host, as ``python -m testbed.worker --connect PATH --name
        NAME`` with :attr:`path` as PATH.

        :param names: Name of the host by name of the worker.
        :param timeout: Seconds until all have to have connected.
        :raises WorkerTimeout: One has not.
        """
        for name, node in names.items():
            if name in self._workers:
                raise SpecError(f"worker: {name!r} is already there")
            self.fabric.plan.host(node)
            self._workers[name] = Worker(self, name, node, None, None)
        try:
            self._accept(set(names), timeout)
        except BaseException:
            self.dismiss(names)
            raise

    def dismiss(self, names: Iterable[str]) -> None:
        """Stop workers that :meth:`expect` let in, and forget them."""
        for name in names:
            worker = self._workers.pop(name)
            worker.stop()
            worker.close(time.monotonic())

    def check(self) -> None:
        """Raise :class:`WorkerDied` if a worker has died."""
        for _ in self._messages(0.0, list):
            pass

    def _start(self, name: str) -> Worker:
        log = self.fabric.directory / f"{name}.log"
        command = [sys.executable, "-m", "testbed.worker", "--connect", str(self.path), "--name", name]
        with log.open("wb") as output:
            process = self.fabric.popen(
                name,
                command,
                track=f"worker {name}",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self._affinity == "rank" and name in self.fabric.hosts:
            cpus = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(process.pid, {cpus[self.fabric.plan.host(name).rank % len(cpus)]})
        return Worker(self, name, name, process, log)

    def _accept(self, names: set[str], timeout: float) -> None:
        """Let ``names`` connect; other clients are turned away."""
        deadline = time.monotonic() + timeout
        while names:
            sentinels = {self._workers[n].process.pid: n for n in names if self._workers[n].process}  # type: ignore[union-attr]
            pidfds = {os.pidfd_open(pid): name for pid, name in sentinels.items()}
            try:
                ready = wait([self._listener, *pidfds], max(0.0, deadline - time.monotonic()))
            finally:
                for pidfd in pidfds:
                    os.close(pidfd)
            if self._listener in ready:
                names.discard(self._welcome(names))
            elif ready:
                raise self._workers[pidfds[ready[0]]].died()  # type: ignore[index]
            else:
                raise WorkerTimeout(
                    f"workers {', '.join(sorted(names))} did not connect within {timeout:g} s"
                )

    def _welcome(self, names: set[str]) -> str:
        client, _ = self._listener.accept()
        connection = Connection(client.detach())
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            hello = connection.recv()
            if not isinstance(hello, Hello) or hello.name not in names:
                raise WorkerTimeout(f"a worker that was not expected has connected: {hello}")
            worker = self._workers[hello.name]
            plan = self.fabric.plan
            if worker.node in self.fabric.hosts:
                connection.send(Welcome("host", plan.host(worker.node), plan, sys.path))
            else:
                connection.send(Welcome("switch", plan.switch(worker.node), plan, sys.path))
        except BaseException:
            connection.close()
            raise
        if not worker.process:
            worker.pid = hello.pid
            self.fabric.track(f"worker {hello.name}", hello.pid)
        worker.connection = connection
        return hello.name

    def _send(self, worker: Worker, message: Any) -> None:
        assert worker.connection
        try:
            worker.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise worker.died() from None

    def _messages(
        self, timeout: float | None, missing: Callable[[], list[str]]
    ) -> Iterator[tuple[Worker, Progress | Result | Failure]]:
        """Yield what workers say until nothing is missing. All are listened to, so that a death is seen at once."""
        deadline = None if timeout is None else time.monotonic() + timeout
        by_connection = {worker.connection: worker for worker in self._workers.values()}
        first = True
        while first or missing():
            first = False
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(by_connection, left)  # type: ignore[arg-type]
            if not ready and (names := missing()):
                raise WorkerTimeout(f"workers {', '.join(names)} did not answer within {timeout:g} s")
            for connection in ready:
                worker = by_connection[connection]  # type: ignore[index]
                try:
                    yield worker, connection.recv()  # type: ignore[union-attr]
                except (EOFError, ConnectionResetError):
                    raise worker.died() from None

    def _close(self) -> None:
        self.fabric.workers = None
        for worker in self._workers.values():
            worker.stop()
        deadline = time.monotonic() + STOP_TIMEOUT
        for worker in self._workers.values():
            worker.close(deadline)
        self._workers.clear()
        self._listener.close()
        for path in (self.path, self.path.with_name(self.path.name + ".key")):
            path.unlink(missing_ok=True)
