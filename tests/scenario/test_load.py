"""Scenario files that ship with the project, overrides, and paths."""

from pathlib import Path

import pytest

from testbed.core.errors import SpecError
from testbed.gnn.planetoid import PlanetoidSpec
from testbed.scenario import load_scenario, parse_scenario
from testbed.scenario.load import LARGEST, override

SCENARIOS = Path(__file__).parents[2] / "scenarios"
LEAST = {"scenario": {"name": "least"}, "dataset": {"name": "synthetic"}}


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_scenarios_are_valid(path: Path) -> None:
    assert load_scenario(path).scenario.name == path.stem


def test_defaults_are_filled_in() -> None:
    scenario = parse_scenario(LEAST)
    assert (scenario.fabric.hosts, scenario.fabric.mtu, scenario.model.fanout) == (4, 1500, (10, 5))


def test_round_trip_through_json() -> None:
    scenario = parse_scenario(LEAST)
    assert type(scenario).model_validate_json(scenario.model_dump_json()) == scenario


def test_full_graph_training_has_keys_of_its_own() -> None:
    scenario = parse_scenario(
        {**LEAST, "exchange": {"backends": ["gloo"]}, "model": {"name": "gcn", "layers": 3}}
    )
    assert scenario.scenario.workload == "gnn"
    assert scenario.backends == ("gloo",)
    tables = scenario.model_dump(mode="json")
    assert "collective" not in tables
    assert {"fanout", "batch_size", "steps"}.isdisjoint(tables["model"] | tables["training"])
    assert type(scenario).model_validate_json(scenario.model_dump_json()) == scenario
    assert "exchange" not in parse_scenario(LEAST).model_dump()


def test_the_workload_alone_says_what_is_run() -> None:
    named = parse_scenario({**LEAST, "scenario": {"name": "least", "workload": "gnn"}})
    assert named == parse_scenario({**LEAST, "exchange": {}})
    assert (named.workload.table, named.backends[0]) == ("exchange", "pinch")
    assert parse_scenario(LEAST).scenario.workload == "ddp"


def test_override_parses_toml_and_bare_words() -> None:
    table = override(
        LEAST,
        [
            "training.epochs=2",
            "fabric.switch=bridge",
            'collective.backends=["gloo"]',
            "training.learning_rate = 0.5",
        ],
    )
    assert table["training"] == {"epochs": 2, "learning_rate": 0.5}
    assert table["fabric"]["switch"] == "bridge"
    assert table["collective"]["backends"] == ["gloo"]
    assert "training" not in LEAST  # the given table is left alone


@pytest.mark.parametrize(
    "setting", ["epochs=2", "training.epochs", "=2", ".epochs=2", "training.=2", "faults"]
)
def test_override_of_another_form_is_refused(setting: str) -> None:
    with pytest.raises(SpecError, match=r"must be table\.key=value"):
        override(LEAST, [setting])


def test_seed_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[scenario]\nname = "s"\nseed = 3\n[dataset]\nname = "synthetic"\n')
    assert load_scenario(path).scenario.seed == 3
    assert load_scenario(path, seed=9).scenario.seed == 9


def test_dataset_path_is_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[scenario]\nname = "s"\n[dataset]\nname = "planetoid"\npath = "data"\n')
    dataset = load_scenario(path).dataset
    assert isinstance(dataset, PlanetoidSpec)
    assert dataset.path == str(tmp_path / "data")


def test_dataset_path_of_an_override_is_relative_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scenarios" / "s.toml"
    path.parent.mkdir()
    path.write_text('[scenario]\nname = "s"\n[dataset]\nname = "planetoid"\npath = "data"\n')
    monkeypatch.chdir(tmp_path)
    dataset = load_scenario(path, ["dataset.path=mine"]).dataset
    assert isinstance(dataset, PlanetoidSpec)
    assert dataset.path == str(tmp_path / "mine")


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load_scenario(tmp_path / "none.toml")


@pytest.mark.timeout(20)
def test_only_regular_files_of_a_scenarios_size(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path):
        with pytest.raises(
            SpecError, match=r": is a (character device|directory): must be a regular file"
        ):
            load_scenario(path)
    long = tmp_path / "long.toml"
    long.write_text("#" * (LARGEST + 1))
    with pytest.raises(SpecError, match=r"long\.toml: must have at most 64 KiB"):
        load_scenario(long)


def test_override_that_is_nested_too_deeply() -> None:
    with pytest.raises(SpecError, match=r"--set 'fabric\.hosts=\[\[.*\.\.\.: is nested too deeply"):
        override(LEAST, ["fabric.hosts=" + "[" * 2000])


def test_faults_of_the_file_and_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[scenario]\nname = "s"\nseed = 3\n[dataset]\nname = "synthetic"\n'
        '[[faults]]\naction = "drop"\np = 0.01\nlink = "h1->h2"\n'
        '[[faults]]\naction = "pause"\nhost = "h2"\nat = 1\nfor = "200ms"\n'
    )
    scenario = load_scenario(path, faults=["duplicate copies=2"])
    assert scenario.fault_seed == 3
    assert load_scenario(path, fault_seed=5).fault_seed == 5
    assert scenario.model_dump(mode="json")["faults"] == [
        "drop link=h1->h2 p=0.01",
        "pause host=h2 at=1s for=200ms",
        "duplicate copies=2",
    ]
    assert type(scenario).model_validate_json(scenario.model_dump_json()) == scenario
    assert load_scenario(path, ["faults=[]"]).faults == ()
    assert load_scenario(path, ['faults = ["drop p=0.5"]'], faults=["kill host=h2"]).model_dump(
        mode="json"
    )["faults"] == [
        "drop p=0.5",
        "kill host=h2",
    ]


WRONG_FAULTS = {
    "drop p=2 hop=256": [
        "hop = 256: must be a number or a range such as 3..9, up to 255",
        "p = 2: must be a number from 0 to 1",
    ],
    "shake": [
        "action 'shake' is unknown: must be one of drop, duplicate, corrupt, delay, reorder, burst,"
        " limit, link-down, partition, kill, pause, slow, flood"
    ],
    "drop link=*->h7": ["link: h7 is not a host of this fabric: must be h1 to h4"],
    "flood switch=s2": ["switches: s2 is not a switch of this fabric: must be s1"],
    "pause host=h2": [
        "pause of h2 at 0 s and pause at 1 s are in force at once: must not overlap, "
        "since the end of one would end the other"
    ],
    "limit host=h1 rate=1mbit queue=576B": [
        "limit of h1: queue = 576 B: must be at least a frame, 1514 B"
    ],
}


def test_wrong_faults_of_the_command_line_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[scenario]\nname = "s"\n[dataset]\nname = "synthetic"\n[[faults]]\naction = "pause"\nhost'
        ' = "h2"\nat = 1'
    )
    with pytest.raises(SpecError) as refused:
        load_scenario(path, faults=["drop p=0.1", *WRONG_FAULTS])
    expected = [
        f"--fault {text!r}: {line}" for text, lines in WRONG_FAULTS.items() for line in lines
    ]
    assert str(refused.value).splitlines() == expected


@pytest.mark.parametrize("setting", ["faults=3", "faults=drop p=0.1", "faults={}"])
def test_faults_are_replaced_by_an_array(setting: str) -> None:
    with pytest.raises(
        SpecError, match=r"must be an array of faults, such as \[\] or \['drop p=0\.01'\]"
    ):
        override(LEAST, [setting])
