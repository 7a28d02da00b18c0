"""Scenarios drawn at random: scenario K of seed S is a function of (S, K). Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Literal

from testbed.comm.options import SEGMENT, CollectiveOptions, Lanes, RecoveryFrom
from testbed.core.errors import SpecError
from testbed.exchange.interface import Aggregation
from testbed.exchange.options import (
    ROW_TYPES,
    Adder,
    Broadcast,
    ExchangeOptions,
    HaloChoice,
    Processing,
    SumWidth,
)
from testbed.faults.events import check_events
from testbed.faults.limits import each_limited
from testbed.faults.rule_table import MAX_MTU_HELD
from testbed.faults.spec import events_of, limits_of, parse_fault
from testbed.plan import MAX_LINEAR_MTU
from testbed.protocol.wire import Kind, PinchKind
from testbed.soak.odds import LEAST_PHASE, Odds
from testbed.soak.scenario import Exchange, Group, Scenario, Shape, Summand

__all__ = ["SHARING", "draw", "draw_shape"]

SHARING = 6
"""Scenarios that share a fabric."""
MOST_ELEMENTS = 1 << 20
MOST_SOCKET_ELEMENTS = 1 << 17
SMALL = 1024  # elements of a tensor, 4 KiB, when there are thousands of them
MOST_IN_A_ROW = 6000
MOST_RANKS = 16  # of most fabrics; larger ones take long to open
BUDGET = 12.0  # seconds for a task's collectives, according to the model
# seconds; on a busy machine it takes ranks a while to load their programs before they can meet
TIMEOUT = 10.0
LONG_TIMEOUT = 30.0  # for more than MOST_RANKS
OPENING = 0.25  # seconds that a rank takes to open a group on a core of its own
LANES: tuple[Lanes, ...] = ("int16", "int32")
WAYS: tuple[RecoveryFrom, ...] = ("origin", "upstream")
PROCESSING: tuple[Processing, ...] = ("pinned", "spread")
ADDERS: tuple[Adder, ...] = ("kernel", "process")
BROADCASTS: tuple[Broadcast, ...] = ("tc", "tokens")
SUM_WIDTHS: tuple[SumWidth, ...] = ("wide", "packed")
HALOS: tuple[HaloChoice, ...] = ("rows", "cover")
AGGREGATIONS: tuple[Aggregation, ...] = ("sum", "weighted", "max")
WINDOWS = [1, 2, 4, 8, 8, 16, 32, 64]
MTUS = [576, 1000, 1500, 1500, 2500, MAX_LINEAR_MTU]
JUMBO_MTUS = [4000, 9000, MAX_MTU_HELD]  # of fabrics whose switches are programs
CHUNKS = [0, 0, 0, 64, 1000, 5000]
TOKENS = [0, 0, 1, 2, 8]
SLICES = [0, 0, 4096, 1 << 18]
SEGMENTS = [0, 1 << 14, SEGMENT, SEGMENT]
MAGNITUDES = [0, 0, 1, 3, -4, 20, -60]
BOUNDS = [0.0, 0.01, 1.0, 1e6]
MOST_OF_A_CACHE = 6  # times; each result is another

RING = tuple(kind.name.lower() for kind in Kind if kind < Kind.DOORBELL)
PINCH = tuple(kind.name.lower() for kind in PinchKind if kind < Kind.DOORBELL)

#: Kinds of work and their weights: tensors of all sizes; thousands of small ones; groups that are
#: opened and closed in a row; exchanges; both at once; and backends over sockets, which check the
#: faults themselves.
WORK = {"mixed": 6, "many": 5, "brief": 2, "pinch": 2, "both": 3, "tcp-ring": 1, "gloo": 1}

Ending = Literal["whole", "kill", "cut"]


def draw_shape(seed: int, number: int) -> Shape:
    """Draw the fabric of a scenario."""
    random = Random(f"soak/{seed}/fabric/{number // SHARING}")
    hosts = random.choice([2, 3, 4, 4, 5, 6, 7, 8, 8, random.randint(9, MOST_RANKS)])
    if random.random() < 0.06:
        hosts = random.randint(MOST_RANKS + 1, 32)
    topology = random.choice(["star", "star", "ring", "leaf-spine"])
    k = random.randint(1, min(4, hosts)) if topology == "leaf-spine" else None
    switch = random.choice(["xdp", "xdp", "bridge"])
    mtus = MTUS + JUMBO_MTUS if switch == "xdp" else MTUS
    return Shape(hosts, topology, k, switch, mtu=random.choice(mtus))


def draw(seed: int, number: int) -> Scenario:
    """Draw a scenario; the same arguments always give the same scenario."""
    random = Random(f"soak/{seed}/{number}")
    shape = draw_shape(seed, number)
    work = random.choices(list(WORK), list(WORK.values()))[0]
    backend = work if work in ("tcp-ring", "gloo") else "xdp-ring"
    ending: Ending = "whole"
    killed_after = None
    if backend == "xdp-ring":
        what = random.choices(
            ["whole", "kill", "cut", "controller"], [16, 1 if shape.hosts > 2 else 0, 1, 1]
        )[0]
        if what == "controller":
            killed_after = random.uniform(0.3, 4.0)
        elif work not in ("many", "brief"):
            ending = what  # type: ignore[assignment]
    kinds = {"pinch": PINCH, "both": RING + PINCH}.get(work, RING if backend == "xdp-ring" else ())
    while not _fits(faults := _faults(random, shape, kinds, ending), shape):
        pass
    strays = 0
    if backend == "xdp-ring" and ending == "whole" and random.random() < 0.35:
        strays = random.randint(200, 2000)
    return Scenario(
        seed=seed,
        number=number,
        shape=shape,
        backend=backend,
        groups=() if work == "pinch" else _groups(random, shape, work, faults),
        exchanges=(
            _exchanges(random, shape, work, faults, ending) if work in ("pinch", "both") else ()
        ),
        faults=faults,
        ending=ending,
        timeout=TIMEOUT if shape.hosts <= MOST_RANKS else LONG_TIMEOUT,
        killed_after=killed_after,
        strays=strays,
    )


def _sets(random: Random, shape: Shape, several: bool) -> list[list[int]]:
    """All hosts, in one or two sets."""
    everyone = list(range(shape.hosts))
    random.shuffle(everyone)
    if several and shape.hosts >= 4 and random.random() < 0.25:
        cut = random.randint(2, shape.hosts - 2)
        return [everyone[:cut], everyone[cut:]]
    if random.random() < 0.5:
        everyone.sort()
    return [everyone]


def _groups(random: Random, shape: Shape, work: str, faults: Sequence[str]) -> tuple[Group, ...]:
    odds = Odds.of(faults, ("reduce", "result"))
    in_kernel = work not in ("tcp-ring", "gloo")
    most = MOST_ELEMENTS if in_kernel else MOST_SOCKET_ELEMENTS
    found = []
    for members in _sets(random, shape, several=in_kernel):
        group = Group(
            members=tuple(members),
            terms=CollectiveOptions(
                lanes=random.choice(LANES),
                window=random.choice(WINDOWS),
                recovery=(
                    random.choice(WAYS) if odds.phase(len(members)) >= LEAST_PHASE else "upstream"
                ),
                reorder_threshold=random.choice([0, 1, 2, 4, 16]),
                chunk=random.choice(CHUNKS),
                tokens=random.choice(TOKENS),
                slice=random.choice(SLICES),
                segment=random.choice(SEGMENTS),
            ),
            summands=(),
        )
        if work == "many":
            found.append(_many(random, shape, group, odds))
            continue
        count = random.randint(1, 3) if work == "brief" else None
        group = replace(group, summands=_summands(random, most, count))
        if work == "brief":
            group = replace(
                group,
                rounds=random.randint(2, max(2, min(12, int(BUDGET / OPENING / shape.hosts)))),
            )
        found.append(_affordable(shape, group, odds))
    return tuple(found)


def _summands(random: Random, most: int, count: int | None) -> tuple[Summand, ...]:
    """All-reduces, some of the same size, because the exponent is guessed per size; many if they
    are small.
    """
    sizes = [
        random.choice([0, 1, 2, most, *(int(most ** random.random()) for _ in range(8))])
        for _ in range(3)
    ]
    if count is None:
        count = random.randint(20, 60) if sum(sizes) < most >> 3 else random.randint(2, 7)
    return tuple(Summand(random.choice(sizes), random.choice(MAGNITUDES)) for _ in range(count))


def _affordable(shape: Shape, group: Group, odds: Odds) -> Group:
    """The group with smaller tensors, and then with fewer of them, until they fit into the budget
    according to the model.
    """
    while True:
        seconds = sum(
            odds.all_reduce(group, summand.elements, shape.mtu) for summand in group.summands
        )
        if group.rounds * seconds <= BUDGET or group.capacity <= SMALL:
            break
        summands = [
            replace(s, elements=s.elements // 2) if s.elements > SMALL else s
            for s in group.summands
        ]
        group = replace(group, summands=tuple(summands))
    if group.rounds * seconds > BUDGET:
        count = max(1, int(len(group.summands) * BUDGET / seconds / group.rounds))
        group = replace(group, summands=group.summands[:count])
    return group


def _many(random: Random, shape: Shape, group: Group, odds: Odds) -> Group:
    """Small all-reduces, as many in a row as the budget allows."""
    sizes = [SMALL, SMALL, SMALL, random.randint(1, SMALL), random.randint(0, 8)]
    summands = tuple(
        Summand(random.choice(sizes), random.choice(MAGNITUDES))
        for _ in range(random.randint(4, 16))
    )
    seconds = sum(odds.all_reduce(group, summand.elements, shape.mtu) for summand in summands)
    count = min(BUDGET / seconds, MOST_IN_A_ROW / len(summands)) * random.uniform(0.5, 1)
    return replace(group, summands=summands, times=max(1, int(count)))


def _terms(random: Random) -> ExchangeOptions:
    chosen: dict[str, Any] = {
        "lanes": random.choice(LANES),
        "window": random.choice(WINDOWS),
        "halo": random.choice(HALOS),
        "broadcast": random.choice(BROADCASTS),
        "aggregate": random.choice(ADDERS),
    }
    if chosen["broadcast"] == "tc":
        chosen["processing"] = random.choice(PROCESSING)
        chosen["sums"] = random.choice(SUM_WIDTHS)
    else:
        chosen["dtype"] = random.choice(ROW_TYPES[chosen["aggregate"]])
        if chosen["aggregate"] == "process" and random.random() < 0.4:
            chosen["bound"], chosen["staleness"] = random.choice(BOUNDS), random.choice([1, 3, 10])
    return ExchangeOptions(**chosen)


def _exchanges(
    random: Random, shape: Shape, work: str, faults: Sequence[str], ending: Ending
) -> tuple[Exchange, ...]:
    odds = Odds.of(faults, PINCH)
    members = (
        random.sample(range(shape.hosts), random.randint(2, shape.hosts))
        if random.random() < 0.5
        else None
    )
    found = []
    for chosen in [members] if members else _sets(random, shape, several=work == "pinch"):
        dim = random.choice([1, 3, 16, 64, 200, 512])
        vertices = (
            random.randint(2, 20)
            if random.random() < 0.1
            else int(random.uniform(50, 3000) / dim**0.4)
        )
        terms = _terms(random)
        exchange = Exchange(
            members=tuple(chosen),
            terms=terms,
            aggregation=random.choice(AGGREGATIONS),
            dim=dim,
            vertices=vertices,
            entries=int(vertices * random.uniform(0, 12)),
            hub=random.choice([0, 0, random.randint(1, 2000)]),
            known=terms.bound is None and random.random() < 0.25,
            magnitudes=tuple(random.choice(MAGNITUDES) for _ in range(random.randint(2, 8))),
        )
        seconds = len(exchange.magnitudes) * odds.aggregation(exchange)
        most = int(min(BUDGET / seconds, 50 if terms.bound is None else MOST_OF_A_CACHE))
        if ending == "whole" and random.random() < 0.25:
            exchange = replace(
                exchange,
                rounds=random.randint(2, max(2, min(8, most, int(BUDGET / OPENING / shape.hosts)))),
            )
        elif ending == "whole":
            exchange = replace(exchange, times=random.randint(1, max(1, most)))
        found.append(exchange)
    return tuple(found)


def _faults(random: Random, shape: Shape, kinds: Sequence[str], ending: Ending) -> tuple[str, ...]:
    """Draw what happens to frames of these kinds; if there are none, to those of sockets."""
    drawers: list[Callable[[Random, Shape, Sequence[str]], str]] = [
        _drop,
        _duplicate,
        _corrupt,
        _delay,
        _reorder,
        _burst,
    ]
    if ending == "whole":
        drawers += [_limit, _link_down, _partition, _pause, _slow, _flood]
    count = random.choices(range(5), [1, 3, 3, 2, 2] if kinds else [1, 3, 1, 0, 0])[0]
    faults = [random.choice(drawers)(random, shape, kinds) for _ in range(count)]
    if ending == "kill":
        faults.append(f"kill hosts={_host(random, shape)} at={random.randint(0, 30)}ms")
    elif ending == "cut":
        host = _host(random, shape)
        others = [f"h{rank + 1}" for rank in range(shape.hosts) if f"h{rank + 1}" != host]
        faults.append(
            random.choice([f"link-down hosts={host}", f"partition sets={host}|{','.join(others)}"])
        )
    return tuple(faults)


def _fits(faults: tuple[str, ...], shape: Shape) -> bool:
    """Whether faults may be in force together."""
    parsed = [parse_fault(fault) for fault in faults]
    try:
        check_events(events_of(parsed), shape.plan())
        list(each_limited(limits_of(parsed), shape.plan()))
    except SpecError:
        return False
    return True


def _host(random: Random, shape: Shape) -> str:
    return f"h{random.randint(1, shape.hosts)}"


def _match(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    """Which frames a rule applies to: often all."""
    words = []
    if random.random() < 0.4:
        one, other = random.sample(range(1, shape.hosts + 1), 2)
        words.append("link=" + random.choice([f"h{one}->h{other}", f"h{one}->*", f"*->h{other}"]))
    if kinds and random.random() < 0.3:
        words.append("kind=" + random.choice([*kinds, ",".join(random.sample(kinds, 2))]))
    if kinds and random.random() < 0.15:
        words.append(
            random.choice(
                [
                    "attempt=0",
                    "attempt=1..65535",
                    f"hop={random.randint(1, shape.hosts)}",
                    "chunk=0..31",
                ]
            )
        )
    return "".join(f" {word}" for word in words)


def _p(random: Random, most: float) -> str:
    """A probability; smaller ones are more likely."""
    return f"p={most ** random.uniform(1, 4):.6f}"


def _drop(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    return f"drop {_p(random, 0.3 if kinds else 0.02)}{_match(random, shape, kinds)}"


def _duplicate(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    return (
        f"duplicate {_p(random, 0.3)} copies={random.randint(1, 7)}{_match(random, shape, kinds)}"
    )


def _corrupt(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    if "result" in kinds and random.random() < 0.15:
        return f"corrupt p={random.uniform(0.3, 0.6):.3f} bits=2 kind=result"
    # One bit with sockets: TCP's checksum misses one in 32 pairs of flipped bits, which no backend
    # can help.
    bits = random.choice([1, 2, 3, 8, 64]) if kinds else 1
    return f"corrupt {_p(random, 0.2 if kinds else 0.01)} bits={bits}{_match(random, shape, kinds)}"


def _delay(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    shape_of = random.choice(["constant", "uniform", "normal", "pareto"])
    delay = random.randint(10, 3000)
    jitter = "" if shape_of == "constant" else f" jitter={random.randint(1, delay)}us"
    return (
        f"delay {_p(random, 0.2)} delay={delay}us{jitter}"
        f" distribution={shape_of}{_match(random, shape, kinds)}"
    )


def _reorder(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    within = random.randint(1, 20)
    return (
        f"reorder {_p(random, 0.2)} behind={random.randint(1, 64)}"
        f" within={within}ms{_match(random, shape, kinds)}"
    )


def _burst(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    enter, leave, most = (0.02, 0.2, 0.9) if kinds else (0.005, 0.5, 0.5)
    return (
        f"burst p={random.uniform(0.1, most):.3f} enter={random.uniform(0.001, enter):.4f} "
        f"leave={random.uniform(leave, 0.8):.3f}{_match(random, shape, kinds)}"
    )


def _limit(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    # Under XDP the rate of a receiver can only be limited if all senders are at one switch.
    direction = random.choice(["up", "down", "both"]) if shape.topology == "star" else "up"
    queue = random.choice([16, 64, 256, 1024])
    return (
        f"limit hosts={_host(random, shape)} direction={direction}"
        f" rate={random.randint(200, 5000)}mbit queue={queue}KiB"
    )


def _when(random: Random) -> str:
    # Often early, because undisturbed work is over soon.
    return f"at={int(60_000 ** random.random())}us for={random.randint(5, 400)}ms"


def _link_down(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    return f"link-down hosts={_host(random, shape)} {_when(random)}"


def _partition(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    names = [f"h{rank + 1}" for rank in range(shape.hosts)]
    random.shuffle(names)
    cut = random.randint(1, shape.hosts - 1)
    return f"partition sets={','.join(names[:cut])}|{','.join(names[cut:])} {_when(random)}"


def _pause(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    return f"pause hosts={_host(random, shape)} {_when(random)}"


def _slow(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    return (
        f"slow hosts={_host(random, shape)} share={random.uniform(0.05, 0.5):.2f} {_when(random)}"
    )


def _flood(random: Random, shape: Shape, kinds: Sequence[str]) -> str:
    return f"flood switches={random.choice(shape.plan().switches).name} {_when(random)}"
