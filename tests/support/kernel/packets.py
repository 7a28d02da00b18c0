"""Packets for the ring's programs, built with scapy, and a rank in the middle of a collective that
receives them.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from testbed.protocol.scapy_layers import RingHeader
from testbed.protocol.wire import BLOCK, PORT, Header, Kind, Words, checksum, frame_seal, stored
from tests.support.kernel.reference import KernelRank
from tests.support.native.process import NativeProcess
from tests.support.protocol.network import COOKIE, GROUP, config, endpoints

RANK, RANKS = 1, 3
SEQ, TOTAL, TAG = 5, 6, 0xBEEF
CHUNKS = 8
LENGTH = 2 * BLOCK
WINDOW = 1  # slot 0, chunk 1, is launched by a work request; slot 1, chunk 4, by the first token
PEERS = endpoints(RANKS)


def input_of(rank: int, chunk: int) -> Words:
    return np.random.default_rng([rank, chunk]).integers(0, 1 << 64, LENGTH // 8, np.uint64)


def total_of(chunk: int) -> Words:
    return np.sum([input_of(rank, chunk) for rank in range(RANKS)], axis=0, dtype=np.uint64)


def packet(
    payload: Words | None = None,
    source: int = RANK - 1,
    to: int = RANK,
    port: int = PORT,
    **fields: int,
) -> bytes:
    """A whole frame to the rank; fields that are not given have the values of a valid frame, and
    the seal matches the fields.

    :param source: Rank whose addresses are the frame's source.
    :param to: Rank whose addresses are the frame's destination.
    """
    words = np.zeros(LENGTH // 8, np.uint64) if payload is None else payload
    good = {
        "kind": 0,
        "group": GROUP,
        "cookie": COOKIE,
        "seq": SEQ,
        "sender": source,
        "receiver": to,
        "tag": TAG,
        "length": 8 * words.size,
    } | stored(**fields)
    said = Header(**{name: value for name, value in good.items() if name != "magic"})
    good.setdefault("checksum", checksum(words) + frame_seal(said) & (1 << 64) - 1)
    frame = (
        Ether(dst=PEERS[to].mac, src=PEERS[source].mac)
        / IP(src=PEERS[source].ip, dst=PEERS[to].ip, id=0, flags="DF")
        / UDP(sport=PORT, dport=port, chksum=0)
        / RingHeader(**good)
        / Raw(words.tobytes())
    )
    return bytes(frame)


def reduce(chunk: int, **fields) -> bytes:
    """A frame of the reduce-scatter phase as it reaches the rank: the sum of the inputs of all
    ranks from the owner on.
    """
    owner = chunk % RANKS
    hops = (RANK - owner) % RANKS
    before = [input_of((owner + hop) % RANKS, chunk) for hop in range(hops)]
    words = np.sum(before, axis=0, dtype=np.uint64) if hops else input_of(owner, chunk)
    return packet(words, **{"kind": Kind.REDUCE, "chunk": chunk, "hop": hops} | fields)


def result(chunk: int, **fields) -> bytes:
    """A frame of the all-gather phase as it reaches the rank. The phase starts behind the last rank
    of the reduce-scatter phase, so it ends in front of that rank.
    """
    hop = (RANK - (chunk % RANKS - 1)) % RANKS
    return packet(total_of(chunk), **{"kind": Kind.RESULT, "chunk": chunk, "hop": hop} | fields)


def nack(chunk: int, source: int = RANK + 1, **fields: int) -> bytes:
    """A nack from the rank behind this one, which lacks the partial sum."""
    return packet(source=source, **{"kind": Kind.NACK, "chunk": chunk} | fields)


def probe(source: int, kind: Kind = Kind.PROBE, **fields: int) -> bytes:
    """A probe, or an answer to one."""
    return packet(np.zeros(0, np.uint64), source=source, **{"kind": kind, "tag": 0} | fields)


def kick(**fields) -> bytes:
    return packet(**{"kind": Kind.DOORBELL, "seq": 0, "tag": 0, "length": 0} | fields)


def prepare(kernel: KernelRank, native: NativeProcess) -> None:
    """Enter the collective with all input ready, the first own chunk launched and its token in
    flight.
    """
    kernel.reset(SEQ - 1)
    kernel.control.lossy = SEQ - 1  # partial sums are saved
    for chunk in range(TOTAL):
        kernel.inputs[chunk] = input_of(RANK, chunk)
        kernel.records["input_sum"][chunk] = checksum(input_of(RANK, chunk))
    native.begin(SEQ, TOTAL, LENGTH, TAG)
    native.publish(SEQ, TOTAL)
    native.kicks()
    kernel.run("ring_execute", kick())
    counters = kernel.object.maps["ring_counters"]
    counters.update(0, bytes(counters.stride * counters.per_cpu))


@contextmanager
def loaded(
    chunks: int = CHUNKS,
    upstream: bool = False,
    reorder_threshold: int = 0,
    retransmit_slots: int = 4,
    spare: int = 0,
) -> Iterator[tuple[KernelRank, NativeProcess]]:
    terms = {
        "upstream": upstream,
        "reorder_threshold": reorder_threshold,
        "retransmit_slots": retransmit_slots,
    }
    setting = config(RANK, RANKS, chunk_bytes=LENGTH, chunks=chunks, **terms)
    with closing(KernelRank(setting, spare)) as kernel:
        shared = {name: kernel.memory[name] for name in ("control", "early_frames", "sq")}
        with NativeProcess(RANK, RANKS, WINDOW, shared) as native:
            yield kernel, native
