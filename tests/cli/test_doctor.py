"""``testbed doctor`` as a user runs it."""

import json
import re
import subprocess

import pytest

from testbed.probes import PROBES
from tests.support.another_user import as_another_user
from tests.support.command import PROGRAM, run_testbed


@pytest.mark.deep
def test_one_line_a_capability() -> None:
    done = run_testbed("doctor")
    *lines, totals = done.stdout.splitlines()
    found = [re.match(r"(OK  |WARN|FAIL|SLOW)  (.+?)  +\S", line) for line in lines]
    assert [match and match[2] for match in found] == list(PROBES)
    counts = [sum(line.startswith(level) for line in lines) for level in ("OK", "WARN", "FAIL")]
    assert totals == "{} OK, {} WARN, {} FAIL".format(*counts)
    assert done.returncode == (1 if counts[2] else 0)
    assert all("; fix: " in line for line in lines if not line.startswith("OK"))
    assert "\x1b" not in done.stdout  # no colours into a file


def test_json_without_root() -> None:
    command = as_another_user(*PROGRAM, "doctor", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = json.loads(done.stdout)
    assert [finding["name"] for finding in printed["findings"]] == list(PROBES)
    assert sum(printed["counts"].values()) == len(PROBES)
    for finding in printed["findings"]:
        assert set(finding) == {"name", "level", "detail", "remedy", "blocked"}
        assert bool(finding["remedy"]) == (finding["level"] != "OK")
    levels = {finding["name"]: finding["level"] for finding in printed["findings"]}
    assert levels["root"] == levels["verifier"] == "FAIL"
    assert done.returncode == 1
