"""The controller's side: a worker in every host and switch, called by name, and watched."""

import itertools
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary

from testbed import native
from testbed.core.closing import Stacked
from testbed.core.errors import FabricError, SpecError, WorkerDied, WorkerTimeout
from testbed.core.logs import logger_of, timed
from testbed.host.cpus import usable_cpus
from testbed.host.machine import Affinity
from testbed.kernel.compile import compile_all
from testbed.worker.forkserver import Forkserver
from testbed.worker.messages import Call, Failure, Hello, Log, Progress, Result, Welcome
from testbed.worker.worker import Worker

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Workers"]

logger = logger_of(__name__)

START_TIMEOUT = 30.0  # seconds; a busy machine takes long to start 64 interpreters
STOP_TIMEOUT = 2.0  # seconds for workers to close their resources, before SIGKILL

# What workers of most fabrics use: the programs on links, and the testbed's own backend.
MODULES = ("testbed.datapath.switch", "testbed.collectives.ring.xdp_ring")

_OPEN: "WeakKeyDictionary[Fabric, Workers]" = WeakKeyDictionary()


class Workers(Mapping[str, Worker], Stacked):
    """All workers of a fabric, by name. A context manager; for one thread at a time.

    Workers are killed when the thread that entered the context exits (PR_SET_PDEATHSIG), so enter
    it in a thread that lasts.

    All are forked from one process, which has imported the modules that most of them need; starting
    an interpreter with its libraries would take seconds per worker.

    :param fabric: A fabric that is up.
    :param affinity: ``rank`` binds the worker of rank r, and with it the softirqs that its system
        calls raise, to CPU r modulo the number of CPUs; ``one`` binds all of them to the first CPU;
        ``none`` leaves it to the scheduler.
    :param modules: Modules to import before workers start, in addition to those that all fabrics
        need; useful for modules that take long, such as torch.
    :raises SpecError: ``affinity`` is none of these.
    """

    def __init__(
        self, fabric: "Fabric", affinity: Affinity = "none", modules: Iterable[str] = ()
    ) -> None:
        if affinity not in get_args(Affinity):
            raise SpecError(
                f"affinity: {affinity!r} is unknown: must be one of {', '.join(get_args(Affinity))}"
            )
        self.fabric = fabric
        #: The socket that workers connect to.
        self.path = fabric.directory / "workers.sock"
        self._key_path = self.path.with_name(self.path.name + ".key")
        self._key = secrets.token_bytes(32)
        self._affinity = affinity
        self._modules = (*MODULES, *modules)
        self._workers: dict[str, Worker] = {}
        self._numbers = itertools.count()

    def __getitem__(self, name: str) -> Worker:
        """A worker.

        :raises KeyError: There is none of this name; the text has those that there are.
        """
        try:
            return self._workers[name]
        except KeyError:
            raise KeyError(
                f"{name!r} is no worker: must be one of {', '.join(self._workers)}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def _enter(self, stack: ExitStack) -> None:
        if Workers.find(self.fabric):
            raise FabricError("this fabric has workers already")
        # Compile now: a rank that compiled later would keep others waiting beyond their timeouts.
        compile_all()
        native.compile_all()
        self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        # Only root can access the directory. The key keeps out workers of an earlier run with
        # the same id.
        self._key_path.write_bytes(self._key)
        stack.callback(self._key_path.unlink)
        self._listener.bind(str(self.path))
        stack.callback(self.path.unlink)
        self._listener.listen(socket.SOMAXCONN)
        forkserver = stack.enter_context(Forkserver(self.fabric, self.path, self._modules))
        stack.callback(self._stop)
        with timed(logger, logging.INFO, "%d workers up", len(self.fabric.nodes)):
            for name in self.fabric.nodes:
                self._workers[name] = self._start(forkserver, name)
            self._accept(set(self._workers), START_TIMEOUT)
        _OPEN[self.fabric] = self
        stack.callback(_OPEN.pop, self.fabric, None)

    @staticmethod
    def find(fabric: "Fabric") -> "Workers | None":
        """The workers that are open on a fabric, if any are."""
        return _OPEN.get(fabric)

    @staticmethod
    def of(fabric: "Fabric") -> "Workers":
        """The workers that are open on a fabric.

        :raises FabricError: None are.
        """
        if (found := Workers.find(fabric)) is None:
            raise FabricError(
                "programs are owned by the workers of hosts and switches, and none are running"
            )
        return found

    def call_all(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Mapping[str, Any]] | Iterable[str],
        *,
        timeout: float | None = None,
        patience: float | None = None,
        on_progress: Callable[[str, Any], None] | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> dict[str, Any]:
        """Call ``function(context, **arguments[name])`` in several workers at once.

        :param function: A module-level function, sent by name.
        :param arguments: Keyword arguments by worker's name, or names alone.
        :param timeout: Seconds within which all have to answer.
        :param patience: Seconds that each may take until it answers or gives something to
            ``context.progress``, and from there to the next time: however busy the machine is, work
            that gets on is not given up.
        :param on_progress: Called with a worker's name and what its function gave to
            ``context.progress``.
        :param errors: ``raise`` the first exception that a function raises, with a note that holds
            its traceback; the others' answers are dropped when they come, before their next call.
            ``return`` puts exceptions among the results, also the :class:`WorkerDied` of those
            whose death is expected.
        :return: Results by worker's name, in the order of ``arguments``.
        :raises WorkerDied: A worker of the fabric has died, whether or not it was called; one whose
            death is expected only if it was called.
        :raises WorkerTimeout: The timeout has expired, or the patience with a worker.
        """
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise TypeError(
                f"{function.__module__}.{function.__qualname__}: no worker can import this name"
            )
        calls = arguments if isinstance(arguments, Mapping) else {name: {} for name in arguments}
        number = next(self._numbers)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._await_idle(calls, deadline)
        answers: dict[str, Any] = {}
        begun: tuple[float, Any] = time.monotonic(), None
        signs = dict.fromkeys(calls, begun)  # the last one of each
        for name, keywords in calls.items():
            worker = self[name]
            try:
                worker.send(
                    Call(number, function.__module__, function.__qualname__, dict(keywords))
                )
                worker.pending.add(number)
            except WorkerDied as death:
                if errors == "raise" or not worker.may_die:
                    raise
                answers[name] = death
        if calls:
            logger.debug("%s in %s", function.__qualname__, ", ".join(calls))
        while missing := [name for name in calls if name not in answers]:
            waiting = {name: signs[name] for name in missing}
            messages = self._receive(_earliest(deadline, waiting, patience))
            if not messages:
                raise _timed_out(waiting, timeout, patience)
            for worker, message in messages:
                if isinstance(message, WorkerDied):
                    if worker.name in missing:
                        answers[worker.name] = message
                        if errors == "raise":
                            raise message
                elif message.number != number:
                    continue  # from a worker that is not part of this call, about an earlier one
                elif isinstance(message, Progress):
                    signs[worker.name] = time.monotonic(), message.value
                    if on_progress:
                        on_progress(worker.name, message.value)
                elif isinstance(message, Result):
                    answers[worker.name] = message.value
                else:
                    message.error.add_note(f"in worker {worker.name}:\n{message.traceback}")
                    answers[worker.name] = message.error
                    if errors == "raise":
                        raise message.error
        return {name: answers[name] for name in calls}

    def expect(
        self,
        names: Mapping[str, str],
        timeout: float = START_TIMEOUT,
        starter: int | None = None,
    ) -> None:
        """Accept workers that something else starts, such as mpirun, in the namespaces of their
        host.

        They run ``python -m testbed.worker --connect PATH --name NAME``, with :attr:`path` as PATH.

        :param names: Name of the host by name of the worker.
        :param timeout: Seconds within which all have to connect.
        :param starter: Id of the process that starts them: once it has ended, none connects.
        :raises WorkerTimeout: One has not.
        """
        for name, node in names.items():
            if name in self._workers:
                raise SpecError(f"worker: {name!r} is there already")
            self.fabric.plan.host(node)
        for name, node in names.items():
            self._workers[name] = Worker(self, name, node)
        try:
            self._accept(set(names), timeout, starter)
        except BaseException:
            self.dismiss(names)
            raise

    def dismiss(self, names: Iterable[str]) -> None:
        """Stop and forget workers that :meth:`expect` has accepted."""
        for name in names:
            worker = self._workers.pop(name)
            worker.stop()
            worker.close(time.monotonic())

    def expect_death(self, node: str) -> list[str]:
        """Expect a node's workers to die from now on: calls to others go on without them.

        Any thread may call this, even while another waits in :meth:`call_all`.

        :param node: Name of a host or switch.
        :return: The names of its workers, those that have joined included.
        :raises SpecError: There is no such node.
        """
        found = [worker for worker in self._workers.values() if worker.node == node]
        if not found:
            raise SpecError(
                f"node: {node!r} has no worker: must be one of {', '.join(self.fabric.nodes)}"
            )
        for worker in found:
            worker.may_die = True
        return [worker.name for worker in found]

    def kill(self, node: str) -> None:
        """Kill a node's workers (SIGKILL) as expected (:meth:`expect_death`); return when they have
        ended.
        """
        from testbed.host.processes import (
            kill,
        )  # workers import this module, too, and do not need Mininet

        listed = {f"worker {name}" for name in self.expect_death(node)}
        kill(entry for entry in self.fabric.state.read().processes if entry.name in listed)

    def check(self, timeout: float | None = 0.0, beside: socket.socket | None = None) -> None:
        """Raise `WorkerDied` if a worker exits unexpectedly.

        :param timeout: Seconds; ``None``: no limit.
        :param beside: Return once this socket has something to read.
        :raises WorkerDied: One has died.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._receive(deadline, beside):
            pass

    def _start(self, forkserver: Forkserver, name: str) -> Worker:
        log = self.fabric.directory / f"{name}.log"
        log.touch()
        process = forkserver.fork(name, self.fabric.nodes[name].pid, log)
        self.fabric.track(f"worker {name}", process.pid)
        logger.debug("%s: worker is process %d, its output goes to %s", name, process.pid, log)
        if self._affinity != "none" and name in self.fabric.hosts:
            cpus = usable_cpus()
            number = self.fabric.plan.host(name).rank if self._affinity == "rank" else 0
            os.sched_setaffinity(process.pid, {cpus[number % len(cpus)]})
        return Worker(self, name, name, process, log)

    def _accept(
        self,
        names: set[str],
        timeout: float,
        starter: int | None = None,
    ) -> None:
        """Let ``names`` connect."""
        deadline = time.monotonic() + timeout
        with ExitStack() as stack:
            gone = []
            if starter is not None:
                gone.append(os.pidfd_open(starter))
                stack.callback(os.close, gone[0])
            ends: dict[
                int, Worker
            ] = {}  # by a descriptor that becomes readable when the process ends
            for worker in map(self._workers.__getitem__, names):
                if worker.process:
                    descriptor = os.pidfd_open(worker.pid)
                    stack.callback(os.close, descriptor)
                    ends[descriptor] = worker
            while names:
                ready = wait([self._listener, *ends, *gone], max(0.0, deadline - time.monotonic()))
                if self._listener not in ready and any(descriptor in ready for descriptor in gone):
                    raise WorkerTimeout(
                        f"workers {', '.join(sorted(names))} did not connect before what starts"
                        " them ended"
                    )
                if not ready:
                    raise WorkerTimeout(
                        f"workers {', '.join(sorted(names))} did not connect in {timeout:g} s"
                    )
                for descriptor, worker in ends.items():
                    if descriptor in ready:
                        raise worker.died()
                names.discard(self._welcome(names))

    def _welcome(self, names: set[str]) -> str:
        client, _ = self._listener.accept()
        with ExitStack() as stack:
            connection = stack.enter_context(Connection(client.detach()))
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            hello = connection.recv()
            if not isinstance(hello, Hello) or hello.name not in names:
                raise FabricError(f"a worker has connected that was not expected: {hello}")
            worker = self._workers[hello.name]
            plan = self.fabric.plan
            level = logger_of("testbed").getEffectiveLevel()
            if worker.node in self.fabric.hosts:
                connection.send(Welcome("host", plan.host(worker.node), plan, sys.path, level))
            else:
                connection.send(Welcome("switch", plan.switch(worker.node), plan, sys.path, level))
            if not worker.process:
                worker.pid = hello.pid
                self.fabric.track(f"worker {hello.name}", hello.pid)
            worker.connection = connection
            stack.pop_all()
        return hello.name

    def _await_idle(self, names: Iterable[str], deadline: float | None) -> None:
        """Discard late answers to abandoned calls until these workers have none left.

        A worker that is still sending an answer would not read a new call, and large answers do not
        fit into the socket buffer.
        """
        while busy := [name for name in names if self[name].pending]:
            if not self._receive(deadline):
                raise WorkerTimeout(
                    f"workers {', '.join(busy)} are still busy with an earlier call"
                )

    def _receive(
        self, deadline: float | None, beside: socket.socket | None = None
    ) -> list[tuple[Worker, Progress | Result | Failure | WorkerDied]]:
        """Return one message of each worker that has sent one, or its death; nothing if the timeout
        expires.

        It listens to all workers, so that it notices the death of any at once.
        """
        while True:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            open_workers = {w.connection: w for w in self._workers.values() if w.connection}
            ready = wait([*open_workers, *([beside] if beside else [])], timeout)
            messages = self._read(open_workers, ready)
            if messages or not ready or beside in ready:
                return messages

    def _read(
        self, open_workers: Mapping[Connection, Worker], ready: Sequence[object]
    ) -> list[tuple[Worker, Progress | Result | Failure | WorkerDied]]:
        """Read a message of each worker that is ready, and write entries of logs to our own."""
        messages: list[tuple[Worker, Progress | Result | Failure | WorkerDied]] = []
        for connection, worker in open_workers.items():
            if connection not in ready:
                continue
            try:
                message = connection.recv()
            except (
                EOFError,
                OSError,
            ):  # the end, a reset, or half a message: it died while it answered
                message = worker.died()
                if not worker.may_die:
                    raise message from None
            if isinstance(message, Log):
                logger_of(message.logger).log(message.level, "%s: %s", worker.name, message.text)
                continue
            if isinstance(message, Result | Failure):
                worker.pending.discard(message.number)
            messages.append((worker, message))
        return messages

    def _stop(self) -> None:
        """Stop switches last: ranks that part wait for frames of each other."""
        for names in (
            [name for name in self._workers if name not in self.fabric.switches],
            [name for name in self._workers if name in self.fabric.switches],
        ):
            for name in names:
                self._workers[name].stop()
            deadline = time.monotonic() + STOP_TIMEOUT
            for name in names:
                self._workers[name].close(deadline)
        self._workers.clear()


#: By worker's name: when it was last heard of, and what it said then.
Signs = Mapping[str, tuple[float, Any]]


def _earliest(deadline: float | None, signs: Signs, patience: float | None) -> float | None:
    """When to stop waiting for the next message."""
    ends = [heard + patience for heard, _ in signs.values()] if patience is not None else []
    return min([*ends, *([] if deadline is None else [deadline])], default=None)


def _timed_out(signs: Signs, timeout: float | None, patience: float | None) -> WorkerTimeout:
    """Name those that have not answered, or, if there is time left for all, those that do not get
    on, and how far they have come.
    """
    if patience is not None:
        last = time.monotonic() - patience
        stuck = {name: said for name, (heard, said) in signs.items() if heard <= last}
        if stuck:
            where = [
                name if said is None else f"{name} (at {said})" for name, said in stuck.items()
            ]
            return WorkerTimeout(
                f"workers {', '.join(where)} have neither answered nor got on for {patience:g} s"
            )
    return WorkerTimeout(f"workers {', '.join(signs)} did not answer within {timeout:g} s")
