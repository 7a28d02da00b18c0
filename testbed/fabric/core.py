"""A fabric: the hosts, links and switches of a plan, built with Mininet, and their removal."""

import ipaddress
import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from testbed.core.closing import Stacked
from testbed.core.errors import FabricError, SpecError
from testbed.core.logs import logger_of, timed
from testbed.fabric.namespace import FEATURES
from testbed.fabric.nodes import START_TIMEOUT, Bridge, Host, NamespaceNode, SilentIntf, VethLink
from testbed.fabric.state import ROOT, State, StateFile, new_run_id
from testbed.host.cgroup import remove_groups
from testbed.host.processes import RUN_VARIABLE, ProcessEntry, kill, processes_of, start_time
from testbed.host.rights import add_system_tools, require_root
from testbed.host.signals import SIGNALS, signals_later
from testbed.kernel.maps import BPF_F_MMAPABLE, Map
from testbed.plan import Datapath, FabricPlan

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Mininet 2.3 imports distutils
    from mininet.net import Mininet


__all__ = ["Fabric"]

_ARRAY = 2  # BPF_MAP_TYPE_ARRAY

logger = logger_of(__name__)


class Fabric(Stacked):
    """Hosts, links and switches, which exist while the context is entered.

    While it is up, SIGTERM and SIGHUP raise ``SystemExit`` in the main thread, as SIGINT raises
    ``KeyboardInterrupt``, so that they leave the context as well.

    :param plan: What to build.
    :param run_id: Name of the run, unique on this machine; random if not given.
    :param root: Where state files are kept.
    :param kept: It stays up for interactive use: `testbed exec` and `down` use it if no run is
        named.
    :param results: The folder that the run writes its results into: if the controller is killed,
        `testbed clean` names it.
    """

    def __init__(
        self,
        plan: FabricPlan,
        run_id: str | None = None,
        root: Path = ROOT,
        kept: bool = False,
        results: Path | None = None,
    ) -> None:
        self.plan = plan
        self._results = results
        self._kept = kept
        self.run_id = run_id or new_run_id()
        self.state = StateFile(self.run_id, root)
        #: The run's own directory: sockets, logs, ``/etc/hosts`` of the hosts.
        self.directory = root / self.run_id
        #: Nodes by name; ``.pid`` is the process that holds the namespaces.
        self.hosts: dict[str, Host] = {}
        self.switches: dict[str, Bridge] = {}
        self._datapath: Datapath = "sockets"
        self._sockets_mtu: int | None = None
        self._faults = False
        self._programs = 0
        self._flooding: dict[str, Map] = {}
        self._flooding_lock = threading.Lock()  # the timeline's thread calls it, too

    def _enter(self, stack: ExitStack) -> None:
        add_system_tools()
        require_root()
        self._turn_signals_into_exceptions(stack)
        pid = os.getpid()
        controller = ProcessEntry("controller", pid, start_time(pid) or 0)
        state = State(
            self.run_id,
            controller,
            self.plan.to_dict(),
            directories=[str(self.directory)],
            kept=self._kept,
            results=str(self._results.resolve()) if self._results else None,
        )
        with signals_later():  # each resource is on the stack before a signal can interrupt
            self.state.create(state)
            stack.callback(self.state.remove)
            self.directory.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self._write_hosts_file()
        stack.callback(self._terminate)
        plan = self.plan
        what = (self.run_id, len(plan.hosts), plan.topology, len(plan.switches), plan.switch_kind)
        with timed(logger, logging.INFO, "run %s: %d hosts up, %s, %d switches of kind %s", *what):
            self._build()

    @property
    def nodes(self) -> Mapping[str, NamespaceNode]:
        """Hosts and switches by name."""
        return {**self.hosts, **self.switches}

    @property
    def datapath(self) -> Datapath:
        """The datapath that the links are set to: see `testbed.datapath.set_datapath`."""
        return self._datapath

    def set_links(self, kind: Datapath) -> None:
        """Prepare the links for in-kernel backends or sockets: the part of
        `testbed.datapath.set_datapath` without programs.

        ``xdp``: every end of a link gets GRO, since a veth accepts redirected frames only while it
        has NAPI (``veth_xdp_xmit`` in drivers/net/veth.c), and hosts compute checksums in software,
        since CHECKSUM_PARTIAL does not survive a redirect. ``sockets``: offloads are as planned.
        """
        self._set_offloads(kind)
        self._datapath = kind

    def limit_sockets(self, mtu: int | None) -> None:
        """Let hosts' sockets send packets of at most ``mtu`` bytes, whatever the links carry, by
        the routes; None: as the links do. Connections that are open follow with their next segment.

        :raises FabricError: A route could not be changed.
        """
        if mtu == self._sockets_mtu:
            return
        for host in self.plan.hosts:
            network = ipaddress.ip_interface(f"{host.ip}/16").network
            route = [str(network), "dev", host.ifname, "scope", "link", "src", host.ip]
            size = ["mtu", str(mtu)] if mtu else []
            command = ["ip", "route", "change", *route, "proto", "kernel", *size]
            done = self.run(host.name, command)
            if done.returncode:
                raise FabricError(f"{host.name}: {shlex.join(command)}: {done.stderr.strip()}")
        self._sockets_mtu = mtu

    def set_faults(self, active: bool) -> None:
        """Turn offloads off while faults are in force, so that faults see frames as a real wire
        would carry them.

        Hosts segment and checksum in software, and switches do not merge incoming frames: a rule
        applies to a frame, not to 64 KiB of TCP, and a corrupted segment fails its checksum. The
        datapath must not change meanwhile.
        """
        self._faults = active
        self._set_offloads(self._datapath)

    def count_programs(self, change: int) -> None:
        """Count users' native XDP programs: while there are any, hosts compute checksums in
        software, since CHECKSUM_PARTIAL does not survive XDP_TX or a redirect.
        """
        before, self._programs = self._programs, self._programs + change
        if bool(before) != bool(self._programs):
            self._set_offloads(self._datapath)

    @property
    def faults(self) -> bool:
        """Whether faults are in force."""
        return self._faults

    def flooding(self, switch: str) -> Map:
        """The map that tells all programs of a switch whether its forwarding table is lost; it is
        open while the fabric is up.

        It is created on first use and owned by this process, so that it also applies to programs
        attached later, and any thread may write it, as :func:`testbed.faults.flood.flooded` does.

        :raises SpecError: There is no such switch.
        :raises KernelError: The kernel refused the map.
        """
        self.plan.switch(switch)
        with self._flooding_lock:
            if switch not in self._flooding:
                made = Map.create("flooding", _ARRAY, 4, 8, 1, BPF_F_MMAPABLE)
                self._stack.callback(os.close, made.fd)
                self._flooding[switch] = made
                self._stack.callback(self._flooding.pop, switch)
            return self._flooding[switch]

    @property
    def floods(self) -> frozenset[str]:
        """Names of the switches that have lost their forwarding tables, and flood."""
        with self._flooding_lock:
            return frozenset(name for name, made in self._flooding.items() if made.view()[0, 0])

    def popen(
        self, node: str, command: Sequence[str], track: str, **options: Any
    ) -> "subprocess.Popen[Any]":
        """Start a process inside a node's namespaces. It has entered them on return, so that faults
        of its host affect it.

        :param node: Name of a host or switch.
        :param command: Program and arguments.
        :param track: Its name in the state file.
        :param options: As for :class:`subprocess.Popen`.
        :raises FabricError: It did not enter them in time.
        """
        process = subprocess.Popen(*self._inside(node, command, options), **options)
        logger.debug("%s: started %s as process %d", node, shlex.join(command), process.pid)
        self.track(track, process.pid)
        deadline = time.monotonic() + START_TIMEOUT
        while (
            _in_our_network(process.pid) and process.poll() is None
        ):  # mnexec joins the node's namespaces only once it runs
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise FabricError(
                    f"{track}: is not inside {node} {START_TIMEOUT:g} s after it was started"
                )
            time.sleep(0.001)
        return process

    def run(
        self, node: str, command: Sequence[str], **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command inside a node's namespaces and wait for it: :func:`subprocess.run`, with
        text output.
        """
        options = {"capture_output": True, "text": True, **options}
        with timed(logger, logging.DEBUG, "%s: %s", node, shlex.join(command)):
            return subprocess.run(*self._inside(node, command, options), **options)

    def track(self, name: str, pid: int) -> None:
        """List a process in the state file, so that it is killed with the fabric."""
        self.state.add_process(name, pid)

    def _inside(
        self, name: str, command: Sequence[str], options: dict[str, Any]
    ) -> tuple[list[str]]:
        if name not in self.nodes:
            raise SpecError(f"node: {name!r} is not in this fabric; it has {', '.join(self.nodes)}")
        options["env"] = {**(options.get("env") or os.environ), RUN_VARIABLE: self.run_id}
        return (["mnexec", "-a", str(self.nodes[name].pid), *command],)

    def _build(self) -> None:
        # Mininet.init() would raise limits of the whole machine (net.core, kernel.pty) permanently.
        Mininet.inited = True
        net = Mininet(
            controller=None, host=Host, switch=Bridge, link=VethLink, intf=SilentIntf, build=False
        )
        # Start all processes first, so that they start up in parallel.
        for host in self.plan.hosts:
            self.hosts[host.name] = net.addHost(host.name, fabric=self, plan=host)
        for number, switch in enumerate(self.plan.switches, 1):
            # Mininet would take the datapath id from the name, which need not have a number.
            self.switches[switch.name] = net.addSwitch(
                switch.name, fabric=self, plan=switch, inNamespace=True, dpid=f"{number:x}"
            )
        for node in self.nodes.values():
            node.enter()
        macs = {host.name: host.mac for host in self.plan.hosts}
        for link in self.plan.links:
            options = {"addr1": macs[link.a]} if link.a in macs else {}
            net.addLink(link.a, link.b, link.a_port, link.b_port, **options)
        net.build()
        net.start()
        self._set_offloads("sockets")
        deadline = time.monotonic() + START_TIMEOUT
        for node in self.nodes.values():
            node.wait_ready(deadline)
        self.net = net

    def _set_offloads(self, kind: Datapath) -> None:
        every = dict.fromkeys(FEATURES, self.plan.offload)
        of_host = {**every, "tx": False, "gro": True} if kind == "xdp" else every
        of_port = {**every, "gro": True} if kind == "xdp" else every
        if self._programs or (kind == "xdp" and self.plan.generic):  # native ones switch it off
            of_host = {**of_host, "tx": False, "tso": False}
        if self._faults:
            of_host = {**of_host, "tx": False, "tso": False, "gso": False}
            if not (
                kind == "xdp" and self.plan.switch_kind == "xdp"
            ):  # there, the program gets frames before GRO
                of_port = {**of_port, "gro": False}
        for host in self.hosts.values():
            host.namespace.offload(host.plan.ifname, **of_host)
        for switch in self.switches.values():
            for port in switch.plan.ports:
                switch.namespace.offload(switch.plan.ifname(port), **of_port)

    def _write_hosts_file(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{host.ip} {host.name}" for host in self.plan.hosts)]
        (self.directory / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _terminate(self) -> None:
        """Kill the processes that run in the namespaces, then those that hold them."""
        started = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:  # another Ctrl-C must not stop the clean-up, which is short
                signal.signal(number, signal.SIG_IGN)
        with (
            ExitStack() as stack
        ):  # each step runs even if another one fails; they run in reverse order
            stack.callback(
                lambda: list(remove_groups(self.run_id))
            )  # the group of a slowed host, if an interrupt kept the fault from ending
            stack.callback(lambda: kill(processes_of(self.run_id)))
            for node in self.nodes.values():
                stack.callback(node.terminate)
            holders = {node.pid for node in self.nodes.values()}
            kill(entry for entry in self.state.read().processes if entry.pid not in holders)
        seconds = time.monotonic() - started
        logger.info("run %s: down: %.1f ms", self.run_id, seconds * 1e3)

    def _turn_signals_into_exceptions(self, stack: ExitStack) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets no other thread set handlers

        def leave(number: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(128 + number)

        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None:  # None: it was set by C code, and cannot be restored
                stack.callback(signal.signal, number, handler)
                if number != signal.SIGINT:
                    signal.signal(number, leave)


def _in_our_network(pid: int) -> bool:
    """Whether a process is in this one's network namespace; false if it has ended."""
    with suppress(OSError):
        return os.path.samefile(f"/proc/{pid}/ns/net", "/proc/self/ns/net")
    return False
