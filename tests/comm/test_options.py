"""An option is defined once: a field of its model is a key of scenarios, a field of groups and a
flag of benches.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from testbed.comm.group import GroupSpec
from testbed.comm.options import CollectiveOptions, GroupOptions
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.options import ExchangeOptions, ExchangeTerms
from testbed.workloads.data_parallel.scenario import CollectiveSpec
from testbed.workloads.full_graph.scenario import FullGraphSpec

ROOT = Path(testbed.__file__).parents[1]

ADDED = """
import json, sys
from types import SimpleNamespace
from typer.testing import CliRunner
from testbed.bench.allreduce import Options
from testbed.cli import app
from testbed.comm.group import make_groups
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.plan import plan_fabric
from testbed.results import Table
from testbed.scenario import parse_scenario

def refused(function):
    try:
        function()
    except SpecError as error:
        return str(error)

def scenario(pace):
    return parse_scenario({"scenario": {"name": "s"}, "dataset": {"name": "synthetic"}, "collective": {"pace": pace}})

def bench(pace):
    return str(CliRunner().invoke(app, ["bench", "allreduce", "--pace", str(pace)]).exception)

hosts = [SimpleNamespace(name=name, ip=name, mac=name) for name in "ab"]
kept = scenario(7)
chosen = Options(plan_fabric(), ["gloo"], [4], 1, 0, True, CollectiveOptions(pace=5))
print(json.dumps({
    "scenario": kept.collective.pace,
    "column": Table(kept.model_dump(mode="json")).parameters["collective.pace"],
    "group": make_groups(hosts, **kept.collective.only(CollectiveOptions))[1].pace,
    "row": chosen.parameters["pace"],
    "wrong": [refused(lambda: scenario(10)), refused(lambda: make_groups(hosts, pace=10)), bench(10)],
    "help": " ".join(CliRunner().invoke(app, ["bench", "faults", "--help"], env={"COLUMNS": "200"}).stdout.split()),
}))
"""  # noqa: E501


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (GroupSpec, CollectiveOptions),
        (CollectiveSpec, CollectiveOptions),
        (FullGraphSpec, GroupOptions),
        (FullGraphSpec, ExchangeTerms),
        (ExchangeOptions, GroupOptions),
        (ExchangeOptions, ExchangeTerms),
    ],
)
def test_models_have_the_options(model: type, options: type) -> None:
    assert issubclass(model, options)


def test_an_exchange_has_its_terms() -> None:
    assert set(ExchangeTerms.model_fields) <= set(ExchangeSpec.__dataclass_fields__)


def test_a_new_option_is_one_field(tmp_path: Path) -> None:
    """Only the model is edited, in a copy of the package."""
    for name in ("testbed", "bpf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "testbed" / "comm" / "options.py"
    path.write_text(
        path.read_text() + '    pace: int = Field(default=3, ge=1, le=9, description="how fast")\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", ADDED],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "--pace <int> How fast (1 to 9). [default: 3]" in found.pop("help")
    assert found == {
        "scenario": 7,
        "column": 7,
        "group": 7,
        "row": 5,
        "wrong": [
            "scenario: collective.pace = 10: must be 1 to 9",
            "group: pace = 10: must be 1 to 9",
            "--pace: 10: must be 1 to 9",
        ],
    }
