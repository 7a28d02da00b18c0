"""Archives: what is written is read, and hostile ones do no harm."""

import io
import json
import tarfile

import pytest
from typer.testing import CliRunner

from analysis.comparison import Result, differences, results
from testbed.cli import app
from testbed.core.errors import SpecError
from testbed.results import RunFolder, Table, load_run
from testbed.results.archive import read_archive, write_archive
from testbed.scenario import parse_scenario
from testbed.scenario.foreign import foreign_scenario

TABLE = {"scenario": {"name": "kept", "seed": 4}, "dataset": {"name": "synthetic"}}
PLAN = {"hosts": 4}


@pytest.fixture
def run(tmp_path):
    scenario = parse_scenario(TABLE).model_dump(mode="json")
    table = Table(scenario)
    for epoch in range(3):
        for rank in range(2):
            table.add(0, "tcp-ring", "epoch_time", 2.0 + epoch, "s", rank=rank, epoch=epoch)
        table.add(0, "tcp-ring", "loss", 1.0 / (epoch + 1), "nat", epoch=epoch)
    table.add(0, "tcp-ring", "test_accuracy", 0.8, "1")
    with RunFolder(tmp_path / "run") as folder:
        folder.write_manifest(
            {
                "scenario": scenario,
                "status": "complete",
                "seed": 4,
                "kernel": "Linux 6.1",
                "cpus": 2,
                "versions": {"numpy": "2", "torch": "1"},
                "doctor": [{"name": "XDP", "level": "OK"}],
            }
        )
        table.write(folder)
    return folder.path


@pytest.fixture
def archive(run, tmp_path):
    path = tmp_path / "run.tar.xz"
    write_archive(run, PLAN, path)
    return path


def changed(archive, path, **members):
    """A copy with members replaced, by name with ``_`` for ``.``; None: left out."""
    with tarfile.open(archive) as source, tarfile.open(path, "w:xz") as target:
        for member in source:
            data = source.extractfile(member).read()
            data = members.get(member.name.replace(".", "_"), data)
            if data is not None:
                member.size = len(data)
                target.addfile(member, io.BytesIO(data))
    return path


def test_what_is_written_is_read(run, archive, tmp_path):
    found, original = read_archive(archive), load_run(run)
    assert found.plan == PLAN
    assert found.run.manifest == original.manifest
    assert found.run.frame.equals(original.frame)
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["manifest.json", "plan.json", "results.parquet", "results.csv"]
        csv = opened.extractfile("results.csv").read().decode()
    assert csv.splitlines()[0].startswith("trial,engine,backend,hosts,rank,epoch,metric,value,unit")
    again = tmp_path / "again.tar.xz"
    write_archive(run, PLAN, again)
    assert again.read_bytes() == archive.read_bytes()


def member(name, kind=tarfile.REGTYPE, size=0, target=""):
    found = tarfile.TarInfo(name)
    found.type, found.size, found.linkname = kind, size, target
    return found


@pytest.mark.parametrize(
    "hostile",
    [
        member("../../etc/passwd"),
        member("/etc/passwd"),
        member("manifest.json", tarfile.SYMTYPE, target="/etc/passwd"),
        member("manifest.json", tarfile.LNKTYPE, target="/etc/passwd"),
        member("results.parquet", tarfile.CHRTYPE),
        member("run.py"),
    ],
    ids=lambda each: f"{each.name} {each.type!r}",
)
def test_other_members_are_refused(tmp_path, hostile):
    path = tmp_path / "x.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.addfile(hostile, io.BytesIO(b""))
    with pytest.raises(SpecError) as caught:
        read_archive(path)
    assert str(caught.value) == f"{path}: is not an archive of a run: it has {hostile.name!r}"
    assert [each.name for each in tmp_path.iterdir()] == ["x.tar.xz"]


def test_a_member_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.addfile(member("plan.json", size=(16 << 20) + 1), io.BytesIO(bytes((16 << 20) + 1)))
    with pytest.raises(SpecError, match=r"plan\.json must have at most 16 MiB"):
        read_archive(path)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"plan_json": None}, "is not an archive of a run: plan.json is missing"),
        ({"manifest_json": b"["}, "manifest.json cannot be read: "),
        ({"manifest_json": b"[]"}, "manifest.json is not a JSON object"),
        ({"manifest_json": b"{}"}, "its manifest is not that of a run"),
        ({"results_parquet": b"PAR1"}, "results.parquet cannot be read: "),
    ],
)
def test_damaged_archives_are_refused_in_one_line(archive, tmp_path, members, text):
    path = changed(archive, tmp_path / "x.tar.xz", **members)
    with pytest.raises(SpecError) as caught:
        read_archive(path)
    assert str(caught.value).startswith(f"{path}: {text}")
    assert "\n" not in str(caught.value)


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"no archive")
    with pytest.raises(SpecError, match="is not an archive of a run"):
        read_archive(path)


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
            "x: collective.backends = 'os:system': names code, which would be executed; add --trust"
            " if you know where the archive comes from",
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


def test_what_differs_of_machine_and_kernel(run):
    then = load_run(run).manifest
    now = {**then, "kernel": "Linux \x1b[2J", "versions": {"numpy": "2"}, "doctor": ["x", {}]}
    assert list(differences(then, now)) == [
        ("kernel", "Linux 6.1", "Linux ?[2J"),
        ("version of torch", "1", "none"),
        ("doctor: XDP", "OK", "none"),
    ]
    assert list(differences(then, then)) == []


def test_results_are_compared(run):
    found = {each.what: each for each in results(load_run(run), load_run(run))}
    assert found["an epoch"] == Result("tcp-ring", "an epoch", "s", 3.0, 3.0)
    assert found["last loss"].then == pytest.approx(1 / 3)
    assert found["last loss"].allowed is not None
    assert found["test accuracy"].then == 0.8
    assert "communication" not in found
    loss = Result("tcp-ring", "last loss", "nat", 1.0, 1.2, 0.1)
    assert not loss.passed
    assert not Result("tcp-ring", "last loss", "nat", 1.0, float("nan"), 0.1).passed


def test_a_dry_run_says_what_differs(run, archive, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("testbed.results.environment", lambda: {"kernel": "Linux 7", "cpus": 2})
    result = CliRunner().invoke(app, ["rerun", str(archive), "--dry-run", "--json"])
    assert result.exit_code == 0, result.exception
    said = json.loads(result.stdout)
    differ = {each["what"]: (each["then"], each["now"]) for each in said["differs"]}
    assert differ["kernel"] == ("Linux 6.1", "Linux 7")
    assert "cpus" not in differ
    assert said["results"] == []


def test_archive_as_a_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["archive", str(run), "--csv", "x.csv"])
    assert result.exit_code == 0, result.exception
    assert read_archive(tmp_path / "run.tar.xz").plan["topology"] == "star"
    assert (tmp_path / "x.csv").read_text().count("\n") == 1 + len(load_run(run).frame)
    refused = CliRunner().invoke(app, ["archive", str(tmp_path)])
    assert isinstance(refused.exception, SpecError)
