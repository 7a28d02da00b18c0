"""Former names of options are refused with one line that gives the present name, wherever an option
can be named.
"""

from pathlib import Path

import pytest

from testbed.core.errors import SpecError
from testbed.core.renamed import RENAMED, renamed
from testbed.core.tables import Table, checked, path_of
from testbed.scenario import parse_scenario
from tests.support.command import call_testbed
from tests.support.testing.helpers import run_pytest


class Knobs(Table):
    backends: int = 1


def test_the_present_name_is_spelled_like_the_former() -> None:
    assert [renamed(name) for name in ("transports", "--transports", "--hosts", "")] == [
        "backends",
        "--backends",
        None,
        None,
    ]


def test_no_present_name_is_a_former_one() -> None:
    assert not RENAMED.keys() & set(RENAMED.values())


def test_keys() -> None:
    with pytest.raises(SpecError) as caught:
        checked(Knobs, {"transports": 2}, path_of)
    assert str(caught.value) == "unknown key transports: renamed to backends"


def test_a_former_name_that_a_model_never_had_is_just_unknown() -> None:
    with pytest.raises(SpecError, match=r"unknown key transport: .* backends$"):
        checked(Knobs, {"transport": 2}, path_of)


def test_scenarios() -> None:
    least = {"scenario": {"name": "least"}, "dataset": {"name": "synthetic"}}
    with pytest.raises(SpecError) as caught:
        parse_scenario({**least, "collective": {"transports": ["gloo"]}})
    assert str(caught.value) == "scenario: unknown key collective.transports: renamed to backends"
    with pytest.raises(SpecError) as caught:
        parse_scenario({**least, "scenario": {"name": "least", "kind": "gnn"}})
    assert str(caught.value) == "scenario: unknown key scenario.kind: renamed to workload"


@pytest.mark.parametrize("verb", ["allreduce", "faults"])
def test_flags(verb: str) -> None:
    done = call_testbed("bench", verb, "--transports", "gloo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown option --transports: renamed to --backends\n"


def test_markers(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.group(transport='gloo')\ndef test_it(): pass\n"
    done = run_pytest(tmp_path, text)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_it: marker group: transport: renamed to backend" in done.stderr
    assert "passed" not in done.stdout
