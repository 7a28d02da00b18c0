"""Mininet's prompt on a fabric, for ``testbed up --cli``."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

from testbed.core.numbers import shown

if TYPE_CHECKING:
    from testbed.fabric import Fabric

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Mininet 2.3 imports distutils
    from mininet.cli import CLI
    from mininet.log import setLogLevel

__all__ = ["Prompt"]

#: Commands of Mininet's prompt that drive its shells in nodes, which a fabric does not have, or
#: change the network, which is what the fabric's plan says.
_ABSENT: tuple[str, ...] = (
    "dpctl",
    "gterm",
    "iperf",
    "iperfudp",
    "link",
    "noecho",
    "pingallfull",
    "pingpair",
)
_ABSENT += ("pingpairfull", "ports", "px", "switch", "wait", "x")


class Prompt(CLI):  # type: ignore[misc]  # Mininet has no types
    """Mininet's commands, and ``NODE COMMAND`` to run a command line inside a node.

    It returns when the user leaves it.

    :param fabric: A fabric that is up.
    """

    prompt = "mininet> "

    def __init__(self, fabric: Fabric, stdin: Any = sys.stdin) -> None:
        self._fabric = fabric
        setLogLevel("output")
        super().__init__(fabric.net, stdin=stdin)

    def default(self, line: str) -> None:
        """Run a command line in the node that it begins with."""
        name, _, command = line.strip().partition(" ")
        if line == "EOF":
            self.stdout.write("\n")
            return
        if name not in self._fabric.nodes:
            self.stdout.write(
                f"*** {shown(name)} is no command and no node: nodes are"
                f" {', '.join(self._fabric.nodes)}\n"
            )
        elif not command:
            self.stdout.write(f"*** give a command, as in {name} ip addr\n")
        else:
            self.stdout.flush()
            # Hosts resolve each other's names, so these need not be replaced with addresses.
            shell = ["sh", "-c", command]
            self._fabric.run(name, shell, capture_output=False, stdin=self._input())

    def do_pingall(self, line: str) -> None:
        """Let each host ping every other one once."""
        hosts, lost, sent = list(self._fabric.hosts), 0, 0
        self.stdout.write("*** Ping: testing ping reachability\n")
        for host in hosts:
            self.stdout.write(f"{host} -> ")
            for peer in hosts:
                if peer == host:
                    continue
                ping = ["ping", "-c", "1", "-W", line.strip() or "2", peer]
                sent += 1
                failed = self._fabric.run(host, ping).returncode != 0
                lost += failed
                self.stdout.write("X " if failed else f"{peer} ")
                self.stdout.flush()
            self.stdout.write("\n")
        share = 100 * lost / sent if sent else 0.0
        self.stdout.write(f"*** Results: {share:.0f}% dropped ({sent - lost}/{sent} received)\n")

    def do_xterm(self, line: str, term: str = "xterm") -> None:
        """Open terminals of nodes on the display."""
        if not os.environ.get("DISPLAY"):
            self.stdout.write("*** there is no display: DISPLAY is not set\n")
            return
        for name in line.split():
            if name not in self._fabric.nodes:
                self.stdout.write(f"*** {shown(name)} is no node\n")
                continue
            self._fabric.popen(name, [term, "-T", name], track=f"xterm of {name}")

    def get_names(self) -> list[str]:
        """Name the commands, for help and completion."""
        absent = {f"do_{name}" for name in _ABSENT}
        return [name for name in super().get_names() if name not in absent]

    def onecmd(self, line: str) -> Any:
        """Run a command of the prompt."""
        if (name := line.split(" ")[0].strip()) in _ABSENT:
            self.stdout.write(f"*** {name} is not available here\n")
            return None
        return super().onecmd(line)

    def _input(self) -> Any:
        return self.stdin if self.isatty() else subprocess.DEVNULL
