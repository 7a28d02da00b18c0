"""The table of where CPU time went, of invented profiles."""

import pytest

from testbed.bench.observed import Observed, Overhead
from testbed.bench.telemetry_table import Column, lines, shares
from testbed.telemetry.profile import MACHINE, Count, Profile, Samples

PROFILE = Profile(
    seconds=1.0,
    inside=1.0,
    cpus=2,
    rate=100,
    lost=0,
    samples=(
        Samples("h1", False, "tcp", 50, 50),
        Samples("h1", True, "program.ring_link", 10, 20),
        Samples("h2", True, "program.ring_execute", 10, 10),
        Samples("h2", False, "unclassified", 20, 20),
        Samples(MACHINE, False, "python", 400, 400),
    ),
)
COUNTS = Profile(1.0, 1.0, 2, 100, 0, (), (Count("h1", "syscall", "sendto", 30, 0.0),))
SLOW = Overhead(0.06, 0.02, 0.09, 20)
OBSERVED = Observed(PROFILE, ((0.1,),), COUNTS, 10)


def test_shares_are_those_of_all_nodes_and_programs_are_one_class():
    assert shares(PROFILE) == pytest.approx({"tcp": 0.5, "program": 0.3, "unclassified": 0.2})


def test_a_column_is_as_wide_as_its_heads():
    text = lines([Column("pinch", "dim 64, degree 4", OBSERVED, SLOW), Column("a", "b", OBSERVED)])
    found = {line[4:31].strip(): line[32:].split() for line in text if line.startswith("#   ")}
    assert found["testbed's programs"] == ["30.0", "30.0"]
    assert found["the kernel's network stack"] == ["50.0", "50.0"]
    assert found["telemetry's overhead"] == ["6.0", "-"]
    assert (found["at least"], found["at most"]) == (["2.0", "-"], ["9.0", "-"])
    assert found["system calls"] == ["3.0", "3.0"]
    assert len({len(line) for line in text if line.startswith("#   ")}) == 1
    assert "# telemetry slowed some rows down by more than 5 %" in text
    assert lines([]) == []


def test_an_overhead_that_may_be_noise_is_no_finding():
    (note,) = lines([Column("a", "b", OBSERVED, Overhead(0.06, -0.01, 0.1, 8))])[-1:]
    assert note.startswith("# some overheads are not known better than the machine's noise")
    last = lines([Column("a", "b", OBSERVED, Overhead(0.04, -0.01, 0.1, 8))])[-1]
    assert last.split()[-2:] == ["drops", "0.0"]
