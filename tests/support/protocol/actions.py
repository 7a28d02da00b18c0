"""What happens to a network of ring ranks, drawn by hypothesis."""

import numpy as np
from hypothesis import strategies as st

from testbed.protocol.wire import Frame
from tests.support.protocol.network import Network

ACTIONS = (
    "deliver",
    "deliver",
    "serve",
    "step",
    "lose",
    "duplicate",
    "damage",
    "cancel",
    "misread",
    "timer",
)
"""A healthy network most of the time: what delivers is drawn more often."""


WIDTHS = {
    "seq": 32,
    "chunk": 32,
    "checksum": 64,
    "length": 16,
    "tag": 16,
    "attempt": 16,
    "prev": 32,
}
FIELDS = ("kind", "stream", "hop", "sender", "receiver", "flags", "round", *WIDTHS)

# Long ones: hypothesis tends to lists of about twice the least size, and a handful of actions comes
# to no loss.
SCRIPTS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000)), min_size=80, max_size=400
)


def act(network: Network, action: str, index: int) -> None:
    """One thing that happens, to the frame or member that ``index`` falls on."""
    in_flight, member = network.in_flight, network.members[index % len(network.members)]
    if action == "serve":
        network.serve(index % len(network.members))
    elif action == "step":
        member.step(index % 3 + 1)
    elif action == "timer" and member.waiting:
        member.process.on_timer(network.now_us)
    elif not in_flight:
        return
    elif action == "deliver":
        network.deliver(index % len(in_flight))
    elif action == "lose":
        in_flight.pop(index % len(in_flight))
    elif action == "duplicate":
        in_flight.append(in_flight[index % len(in_flight)].copy())
    elif action == "damage" and (frame := in_flight[index % len(in_flight)]).payload.size:
        frame.payload[index % frame.payload.size] ^= np.uint64(1 << index % 64)
    elif action == "cancel" and (frame := in_flight[index % len(in_flight)]).payload.size:
        # Two errors that a sum of words does not see: a bit set in one word, and the same one
        # cleared in another.
        bit = np.uint64(1 << index % 64)
        clear, full = np.flatnonzero(frame.payload & bit == 0), np.flatnonzero(frame.payload & bit)
        if clear.size and full.size:
            frame.payload[[clear[index % clear.size], full[index % full.size]]] ^= bit
    elif action == "misread":
        header, field = in_flight[index % len(in_flight)].header, FIELDS[index % len(FIELDS)]
        setattr(
            header, field, getattr(header, field) ^ 1 << index // len(FIELDS) % WIDTHS.get(field, 8)
        )


def cancel(frame: Frame) -> None:
    """Two errors that a sum of words does not see: two words that differ in a bit change it."""
    lowest = frame.payload & np.uint64(1)
    frame.payload[[int(np.argmin(lowest)), int(np.argmax(lowest))]] ^= np.uint64(1)
