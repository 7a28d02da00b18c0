"""Topologies as other people write them, and such as a fabric cannot have."""

from typing import Any

from mininet.topo import Topo

__all__ = ["Failing", "Named", "Odd"]


class Named(Topo):  # type: ignore[misc]  # Mininet has no types
    """Names of a user's own; hosts come second in links."""

    def build(self, **_: Any) -> None:
        switch = self.addSwitch("top-of-rack.east")
        for name in ("client", "server.a", "server.b"):
            self.addLink(switch, self.addHost(name))


class Failing(Topo):  # type: ignore[misc]
    """Fails when it is made."""

    def build(self, n: int = 1, **_: Any) -> None:
        self.addHost(f"h{n // 0}")


class Odd(Topo):  # type: ignore[misc]
    """Two hosts and two switches, and something that is not right."""

    def build(self, what: str = "", **_: Any) -> None:
        left, right = self.addSwitch("s1"), self.addSwitch("s2")
        one = self.addHost(
            "h 1" if what == "name" else "h1", **({"ip": "1.2.3.4/8"} if what == "address" else {})
        )
        two = self.addHost("h2")
        shaped = {"bw": 10, "delay": "5ms", "loss": 2, "max_queue_size": 100}
        self.addLink(one, left, **(shaped if what == "shaped" else {}))
        if what == "direct":
            self.addLink(one, two)
        else:
            self.addLink(two, right)
        if what == "two links":
            self.addLink(one, right)
        if what != "apart":
            self.addLink(left, right, **({"bw": 10} if what == "trunk" else {}))
