"""Scenarios of strangers: they name no code and no files, in whatever key."""

import sys

import pytest

from testbed.core.errors import SpecError
from testbed.scenario import parse_scenario
from testbed.scenario.foreign import foreign_scenario

TABLE = {"scenario": {"name": "kept", "seed": 4}, "dataset": {"name": "synthetic"}}


def test_a_scenario_comes_back_as_it_was():
    scenario = parse_scenario(TABLE)
    assert foreign_scenario(scenario.model_dump(mode="json"), (), "x") == scenario
    seeded = foreign_scenario(scenario.model_dump(mode="json"), ["scenario.seed=5"], "x")
    assert seeded.scenario.seed == 5


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"collective": {"backends": ["os:system"]}},
            'x: collective.backends[0] = "os:system": names code, which would be executed; add'
            " --trust if you know where the archive comes from",
        ),
        (
            {"dataset": {"name": "planetoid", "path": "/etc"}},
            "x: dataset.path = '/etc': names files of another machine; give your own: --set"
            " dataset.path=PATH",
        ),
        (
            {"programs": [{"file": "evil.bpf.c"}]},
            "x: programs: would be loaded into the kernel; add --trust if you know where the"
            " archive comes from",
        ),
    ],
)
def test_a_foreign_scenario_names_no_code_and_no_files(keys, text):
    with pytest.raises(SpecError) as caught:
        foreign_scenario({**TABLE, **keys}, (), "x")
    assert str(caught.value) == text


MODULE = """
import builtins
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
from mininet.topo import Topo
class Thing(Topo):
    def build(self, n=2):
        hosts = [self.addHost(f"h{i + 1}") for i in range(n)]
        switch = self.addSwitch("s1")
        for host in hosts:
            self.addLink(host, switch)
"""
NAMES = ["stranger:Thing", "stranger:", "stranger:0", "stranger:Thing:X", "stranger:Thing ", ":"]
PLACES = [
    lambda name: {"fabric": {"topology": name}},
    lambda name: {"fabric": {"topology": f"{name},n=2"}},
    lambda name: {"fabric": {"topology": f"{name},depth=2,1"}},
    lambda name: {"scenario": {"name": "x", "workload": name}},
    lambda name: {"scenario": {"name": "x", "workload": name, "engine": "simulation"}},
    lambda name: {"collective": {"backends": ["gloo", name]}},
    lambda name: {"dataset": {"name": name}},
    lambda name: {"model": {"name": name}},
    lambda name: {"scenario": {"name": "x", "workload": "module"}, "module": {"task": name}},
    lambda name: {"scenario": {"name": "x", "workload": "module"}, "module": {"backends": [name]}},
    lambda name: {"scenario": {"name": "x", "workload": "dnn"}, "dnn": {"model": name}},
    lambda name: {"scenario": {"name": "x", "workload": "gnn"}, "exchange": {"policy": name}},
    lambda name: {"scenario": {"name": "x", "workload": "gnn"}, "exchange": {"backends": [name]}},
    lambda name: {
        "scenario": {"name": "x", "workload": "gnn"},
        "exchange": {"partitioner": name},
    },
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_a_scenario_names_is_imported(place, name, tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    table = {**TABLE, **place(name)}
    with pytest.raises(SpecError, match="names code, which would be executed; add --trust"):
        foreign_scenario(table, (), "x")
    assert "stranger" not in sys.modules
    assert not (tmp_path / "stranger.ran").exists()


def test_code_that_the_user_names_or_trusts_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "stranger2.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["fabric.topology=stranger2:Thing,n=3"]
    assert foreign_scenario(TABLE, own, "x").fabric.hosts == 3
    table = {**TABLE, "fabric": {"topology": "stranger2:Thing,n=2"}}
    with pytest.raises(SpecError, match="names code"):  # also once it is loaded
        foreign_scenario(table, (), "x")
    assert foreign_scenario(table, (), "x", trust=True).fabric.hosts == 2


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"dataset": {"name": "debian", "lists": "/etc"}}, "dataset.lists"),
        ({"dataset": {"name": "pyg", "path": "/etc"}}, "dataset.path"),
        (
            {
                "scenario": {"name": "x", "engine": "simulation"},
                "simulation": {"hardware": "/etc/passwd"},
            },
            "simulation.hardware",
        ),
        (
            {
                "scenario": {"name": "x", "engine": "simulation"},
                "simulation": {"costs": "/etc/passwd"},
            },
            "simulation.costs",
        ),
    ],
)
def test_files_are_named_by_the_user_alone(keys, place):
    table = {**TABLE, **keys}
    with pytest.raises(SpecError) as caught:
        foreign_scenario(table, (), "x", trust=True)
    assert f"x: {place} = '/etc" in str(caught.value)
    assert f"names files of another machine; give your own: --set {place}=PATH" in str(caught.value)
    foreign_scenario(table, [f"{place}=/tmp"], "x")
    foreign_scenario({**TABLE, "dataset": {"name": "debian"}}, (), "x")
