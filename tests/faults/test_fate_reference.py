"""bpf/include/fate.h and testbed/faults/fate.py decide the same fates, bit for bit and packet by
packet.
"""

import numpy as np
import pytest

from testbed.faults.fate import judge
from testbed.faults.identity import KINDS, Packet
from testbed.faults.rule_table import compile_rules
from testbed.kernel import XDP_PASS, BpfObject
from testbed.kernel.abi import lifted
from testbed.plan import MAX_HOSTS, plan_fabric
from tests.support.rules import parse_rule
from tests.support.tiers import broad

pytestmark = pytest.mark.kernel

CASES = 50_000
RULE_SETS = {
    "drop": ["drop p=0.1"],
    "links": [
        "drop p=0.5 link=h1->*",
        "drop p=0.5 link=*->h2,h3->h4,h32->h1",
        "duplicate link=h5->h6",
    ],
    "kinds": ["drop p=0.3 kind=reduce,tcp", "corrupt p=0.3 kind=result,icmp"],
    "ranges": [
        "drop group=3",
        "drop seq=1..40",
        "drop chunk=7 attempt=0",
        "duplicate hop=2..3 attempt=1..9",
    ],
    "duplicate": ["duplicate p=0.5 copies=2", "duplicate p=0.5 copies=7", "duplicate p=0.1"],
    "corrupt": ["corrupt p=0.3 bits=3", "corrupt p=0.5", "corrupt p=0.05 bits=64"],
    "constant": ["delay delay=2ms p=0.5", "delay delay=50us"],
    "distributions": [
        "delay delay=1ms jitter=300us p=0.7",
        "delay delay=60s jitter=60s distribution=normal p=0.6",
        "delay delay=1ms jitter=1s distribution=pareto p=0.5",
    ],
    "delayed copies": [
        "delay delay=1ms jitter=1ms",
        "duplicate copies=3",
        "delay delay=1ms jitter=2ms distribution=normal",
    ],
    "reorder": ["reorder p=0.2 behind=3", "reorder p=0.2 behind=2 within=5ms"],
    "burst": ["burst enter=0.05 leave=0.3", "burst enter=0.001 leave=0.02 p=0.5 link=h1->*"],
    "mild burst": ["burst enter=0.5 leave=0.5"],
    "all": [
        "corrupt p=0.2 bits=2",
        "delay p=0.3 delay=3ms jitter=1ms distribution=normal",
        "duplicate p=0.3 copies=2",
        "reorder p=0.1 behind=4",
        "burst enter=0.02 leave=0.4 p=0.9",
        "drop p=0.02",
    ],
    "as many as there may be": (
        [f"duplicate p=0.05 chunk={i}..{3 * i + 9}" for i in range(63)] + ["drop p=0.01"]
    ),
}
SEEDS = (0, 1, 2**64 - 1)


def packets(seed: int, layout: np.dtype) -> np.ndarray:
    """Random identities; half of the numbers are small, so that ranges are hit and streams are
    short.
    """
    draw = np.random.default_rng(seed)
    cases = np.zeros(CASES, layout)
    for name, high in {
        "sender": MAX_HOSTS,
        "receiver": MAX_HOSTS,
        "hop": 32,
        "attempt": 256,
    }.items():
        cases[name] = draw.integers(0, high, CASES)
    cases["kind"] = draw.choice(list(KINDS.values()), CASES)
    for name, high in {"group": 2**16, "seq": 2**32, "chunk": 2**32}.items():
        cases[name] = np.where(
            draw.random(CASES) < 0.5, draw.integers(0, 50, CASES), draw.integers(0, high, CASES)
        )
    cases["attempt"] //= draw.integers(1, 256, CASES).astype(np.uint8)
    cases["length"] = draw.integers(14, 3600, CASES)
    return cases


@pytest.mark.parametrize("number", broad(range(20), 5))
def test_reference_and_engine_agree(number: int) -> None:
    """20 batches, a million packets in total; verdicts are compared in every detail."""
    names = list(RULE_SETS)
    name, seed = names[number % len(names)], SEEDS[number % len(SEEDS)]
    table = compile_rules(
        [parse_rule(text) for text in RULE_SETS[name]], plan_fabric(hosts=MAX_HOSTS), seed
    )
    sizes = {"cases": CASES, "quantiles": max(1, len(table.quantiles))}
    with BpfObject("fate", max_entries=sizes) as program:
        program.maps["rules"].update(0, table.pack())
        for index, quantiles in enumerate(table.pack_quantiles()):
            program.maps["quantiles"].update(index, quantiles)
        layout = lifted(program.dtype("fate_case"))
        shared = program.maps["cases"].view(layout)[:, 0]
        shared[:] = packets(number, layout)
        assert program.programs["fate_batch"].test_run(bytes(14)).retval == XDP_PASS
        judged = shared.copy()
        del shared
    columns = [judged[field].tolist() for field in (*Packet._fields, "length")]
    for index, (*identity, length) in enumerate(zip(*columns, strict=True)):
        verdict = judge(table, Packet(*identity), length)
        row = judged[index]
        found = (
            row["drop"] != 0,
            tuple(row["flips"][: row["bits"]].tolist()) if row["bits"] else (),
            row["copies"],
            (
                tuple(row["delays"][: row["copies"] + 1].tolist())
                if row["delayed"]
                else (0,) * (int(row["copies"]) + 1)
            ),
            row["behind"],
            row["within"],
            tuple(
                (rule, action, argument)
                for argument, rule, action in row["firings"][: row["fired"]].tolist()
            ),
        )
        assert found == verdict, (index, Packet(*identity), length)
    assert judged["fired"].any()
