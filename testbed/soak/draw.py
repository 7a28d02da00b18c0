"""Scenarios drawn at random: scenario K of seed S is a function of (S, K). Pure."""

from collections.abc import Callable
from random import Random
from typing import Literal

from testbed.collectives.group import Lanes, RecoveryFrom
from testbed.errors import SpecError
from testbed.faults.events import check_events
from testbed.faults.limits import each_limited
from testbed.faults.spec import events_of, limits_of, parse_fault
from testbed.soak.scenario import Group, Scenario, Shape, Summand

__all__ = ["SHARING", "draw", "draw_shape"]

SHARING = 6
"""Scenarios that share a fabric."""
MOST_ELEMENTS = 1 << 20
MOST_SOCKET_ELEMENTS = 1 << 17
TIMEOUT = 10.0  # seconds; on a busy machine ranks take a while to load their programs, before they can meet
LANES: tuple[Lanes, ...] = ("int16", "int32")
WAYS: tuple[RecoveryFrom, ...] = ("origin", "upstream")


def draw_shape(seed: int, number: int) -> Shape:
    """Draw the fabric of a scenario."""
    random = Random(f"soak/{seed}/fabric/{number // SHARING}")
    hosts = random.choice([2, 3, 4, 4, 5, 6, 7, 8, 8, random.randint(9, 16)])
    topology = random.choice(["star", "star", "ring", "leaf-spine"])
    k = random.randint(1, min(4, hosts)) if topology == "leaf-spine" else None
    switch = random.choice(["xdp", "xdp", "bridge"])
    return Shape(hosts, topology, k, switch, mtu=random.choice([576, 1000, 1500, 1500, 2500, 3506]))


def draw(seed: int, number: int) -> Scenario:
    """Draw a scenario; the same arguments give the same one."""
    random = Random(f"soak/{seed}/{number}")
    shape = draw_shape(seed, number)
    transport = random.choices(["xdp-ring", "tcp-ring", "gloo"], [10, 1, 1])[0]
    killed_after = None
    ending: Literal["whole", "kill", "cut"] = "whole"
    if transport == "xdp-ring":
        what = random.choices(["whole", "kill", "cut", "controller"], [16, 1 if shape.hosts > 2 else 0, 1, 1])[0]
        if what == "controller":
            killed_after = random.uniform(0.3, 4.0)
        else:
            ending = what  # type: ignore[assignment]
    scenario = Scenario(
        seed=seed,
        number=number,
        shape=shape,
        transport=transport,
        groups=_groups(random, shape, transport),
        faults=(),
        ending=ending,
        timeout=TIMEOUT,
        killed_after=killed_after,
    )
    while not _fits(faults := _faults(random, shape, transport, ending), shape):
        pass
    return Scenario(**{**vars(scenario), "faults": faults})


def _groups(random: Random, shape: Shape, transport: str) -> tuple[Group, ...]:
    everyone = list(range(shape.hosts))
    random.shuffle(everyone)
    sets = [everyone]
    if transport == "xdp-ring" and shape.hosts >= 4 and random.random() < 0.25:
        cut = random.randint(2, shape.hosts - 2)
        sets = [everyone[:cut], everyone[cut:]]
    elif random.random() < 0.5:
        everyone.sort()
    most = MOST_ELEMENTS if transport == "xdp-ring" else MOST_SOCKET_ELEMENTS
    return tuple(
        Group(
            members=tuple(members),
            lanes=random.choice(LANES),
            window=random.choice([1, 2, 4, 8, 8, 16, 32, 64]),
            recovery=random.choice(WAYS),
            gap=random.choice([0, 1, 4, 16, 16, 64, 4096]),
            summands=_summands(random, most),
        )
        for members in sets
    )


def _summands(random: Random, most: int) -> tuple[Summand, ...]:
    """All-reduces, of which some have the same size, as the guess of the exponent goes by sizes; many, if they are small."""
    sizes = [random.choice([0, 1, 2, most, *(int(most ** random.random()) for _ in range(8))]) for _ in range(3)]
    count = random.randint(20, 60) if sum(sizes) < most >> 3 else random.randint(2, 7)
    return tuple(Summand(random.choice(sizes), random.choice([0, 0, 1, 3, -4, 20, -60])) for _ in range(count))


def _faults(random: Random, shape: Shape, transport: str, ending: str) -> tuple[str, ...]:
    ring = transport == "xdp-ring"
    drawers: list[Callable[[Random, Shape, bool], str]] = [_drop, _duplicate, _corrupt, _delay, _reorder, _burst]
    if ending == "whole":
        drawers += [_limit, _link_down, _partition, _pause, _slow]
        drawers += [] if ring else [_flood]
    count = random.choices(range(5), [1, 3, 3, 2, 2] if ring else [1, 3, 1, 0, 0])[0]
    faults = [random.choice(drawers)(random, shape, ring) for _ in range(count)]
    if ending == "kill":
        faults.append(f"kill hosts={_host(random, shape)} at={random.randint(0, 30)}ms")
    elif ending == "cut":
        host = _host(random, shape)
        others = [f"h{rank + 1}" for rank in range(shape.hosts) if f"h{rank + 1}" != host]
        faults.append(random.choice([f"link-down hosts={host}", f"partition sets={host}|{','.join(others)}"]))
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


def _match(random: Random, shape: Shape, ring: bool) -> str:
    """Which frames a rule is for: often all."""
    words = []
    if random.random() < 0.4:
        one, other = random.sample(range(1, shape.hosts + 1), 2)
        words.append("link=" + random.choice([f"h{one}->h{other}", f"h{one}->*", f"*->h{other}"]))
    if ring and random.random() < 0.3:
        words.append("kind=" + random.choice(["reduce", "result", "request", "probe", "alive", "reduce,result"]))
    if ring and random.random() < 0.15:
        words.append(random.choice(["attempt=0", "attempt=1..255", f"hop={random.randint(1, shape.hosts)}", "chunk=0..31"]))
    return "".join(f" {word}" for word in words)


def _p(random: Random, most: float) -> str:
    """A probability, the smaller the likelier."""
    return f"p={most ** random.uniform(1, 4):.6f}"


def _drop(random: Random, shape: Shape, ring: bool) -> str:
    return f"drop {_p(random, 0.2 if ring else 0.02)}{_match(random, shape, ring)}"


def _duplicate(random: Random, shape: Shape, ring: bool) -> str:
    return f"duplicate {_p(random, 0.3)} copies={random.randint(1, 7)}{_match(random, shape, ring)}"


def _corrupt(random: Random, shape: Shape, ring: bool) -> str:
    # One bit at sockets: TCP's checksum misses one in 32 of two, which is no fault of a transport.
    bits = random.choice([1, 2, 3, 8, 64]) if ring else 1
    return f"corrupt {_p(random, 0.1 if ring else 0.01)} bits={bits}{_match(random, shape, ring)}"


def _delay(random: Random, shape: Shape, ring: bool) -> str:
    shape_of = random.choice(["constant", "uniform", "normal", "pareto"])
    delay = random.randint(10, 3000)
    jitter = "" if shape_of == "constant" else f" jitter={random.randint(1, delay)}us"
    return f"delay {_p(random, 0.2)} delay={delay}us{jitter} distribution={shape_of}{_match(random, shape, ring)}"


def _reorder(random: Random, shape: Shape, ring: bool) -> str:
    within = random.randint(1, 20)
    return f"reorder {_p(random, 0.2)} behind={random.randint(1, 64)} within={within}ms{_match(random, shape, ring)}"


def _burst(random: Random, shape: Shape, ring: bool) -> str:
    enter, leave, most = (0.02, 0.2, 0.9) if ring else (0.005, 0.5, 0.5)
    return (
        f"burst p={random.uniform(0.1, most):.3f} enter={random.uniform(0.001, enter):.4f} "
        f"leave={random.uniform(leave, 0.8):.3f}{_match(random, shape, ring)}"
    )


def _limit(random: Random, shape: Shape, ring: bool) -> str:
    # Under XDP a receiver's rate needs all senders at one switch.
    direction = random.choice(["up", "down", "both"]) if shape.topology == "star" else "up"
    queue = random.choice([16, 64, 256, 1024])
    return f"limit hosts={_host(random, shape)} direction={direction} rate={random.randint(200, 5000)}mbit queue={queue}KiB"


def _when(random: Random) -> str:
    # Early ones often: what has nothing in its way is over soon.
    return f"at={int(60_000 ** random.random())}us for={random.randint(5, 400)}ms"


def _link_down(random: Random, shape: Shape, ring: bool) -> str:
    return f"link-down hosts={_host(random, shape)} {_when(random)}"


def _partition(random: Random, shape: Shape, ring: bool) -> str:
    names = [f"h{rank + 1}" for rank in range(shape.hosts)]
    random.shuffle(names)
    cut = random.randint(1, shape.hosts - 1)
    return f"partition sets={','.join(names[:cut])}|{','.join(names[cut:])} {_when(random)}"


def _pause(random: Random, shape: Shape, ring: bool) -> str:
    return f"pause hosts={_host(random, shape)} {_when(random)}"


def _slow(random: Random, shape: Shape, ring: bool) -> str:
    return f"slow hosts={_host(random, shape)} share={random.uniform(0.05, 0.5):.2f} {_when(random)}"


def _flood(random: Random, shape: Shape, ring: bool) -> str:
    return f"flood switches={random.choice(shape.plan().switches).name} {_when(random)}"
