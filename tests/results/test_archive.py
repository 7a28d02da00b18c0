"""Archives: what is written is read, and hostile ones do no harm."""

import io
import json
import lzma
import random
import resource
import tarfile
from contextlib import suppress

import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.comparison import Result, differences, results
from testbed.cli import app
from testbed.cli.options import Results
from testbed.cli.rerun import tell
from testbed.core.errors import SpecError
from testbed.results import RunFolder, Table, load_run
from testbed.results.archive import read_archive, write_archive
from testbed.scenario import parse_scenario
from testbed.scenario.foreign import foreign_scenario
from tests.support.command import call_testbed
from tests.support.damage import little_memory, refusals
from tests.support.tiers import broad

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
        ({"manifest_json": b"["}, "manifest.json: cannot be read: "),
        ({"manifest_json": b"[]"}, "manifest.json: cannot be read: it is not a JSON object"),
        (
            {"manifest_json": b'{"a": [' + b"[]," * (1 << 21) + b"[]]}"},
            "manifest.json: cannot be read: it has more than 2097152 values",
        ),
        ({"manifest_json": b"{}"}, "its manifest is not that of a run"),
        ({"results_parquet": b"PAR1"}, "results.parquet: cannot be read: "),
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


def test_a_rerun_does_not_look_for_modules_where_it_is_started(run, archive, tmp_path, monkeypatch):
    (tmp_path / "stranger3.py").write_text(
        "from pathlib import Path\nPath(__file__ + '.ran').touch()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TESTBED_MODULES", raising=False)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["scenario"]["fabric"]["topology"] = "stranger3:Thing,n=2"
    changed(archive, tmp_path / "x.tar.xz", manifest_json=json.dumps(manifest).encode())
    for trust, text in (((), "add --trust"), (("--trust",), "No module named 'stranger3'")):
        done = call_testbed("-v", "rerun", "x.tar.xz", "--dry-run", *trust)
        assert done.returncode == 2
        assert text in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "stranger3.py.ran").exists()


def headed(kind, size):
    """An archive that begins with a header of many bytes."""
    header = member("././@LongLink", kind, size)
    packer = lzma.LZMACompressor(preset=0)
    parts = [packer.compress(header.tobuf(tarfile.GNU_FORMAT))]
    parts += [packer.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join([*parts, packer.flush()])


@pytest.mark.parametrize("kind", [b"x", b"g", b"X", b"L", b"K", b"S", b"V", b"5", b"7"])
def test_headers_of_any_size_are_not_read(kind, tmp_path):
    (path := tmp_path / "x.tar.xz").write_bytes(headed(kind, 64 << 20))
    assert path.stat().st_size < 1 << 14
    with little_memory(8 << 20), pytest.raises(SpecError, match=r"it has '\./\./@LongLink"):
        read_archive(path)


def test_headers_that_only_say_when_are_passed_over(archive, tmp_path):
    for name, headers in (("when", {"mtime": "1.5", "uname": "me"}), ("path", {"path": "x"})):
        path = tmp_path / f"{name}.tar.xz"
        with tarfile.open(archive) as source, tarfile.open(path, "w:xz") as target:
            for each in source:
                each.pax_headers = headers
                target.addfile(each, source.extractfile(each))
    assert read_archive(tmp_path / "when.tar.xz").plan == PLAN
    with pytest.raises(SpecError, match="is not an archive of a run: it has"):
        read_archive(tmp_path / "path.tar.xz")


def test_what_follows_the_end_is_read_too(archive, tmp_path):
    data, path = archive.read_bytes(), tmp_path / "x.tar.xz"
    for torn in (data[:-1], data[:-20] + bytes(20)):
        path.write_bytes(torn)
        with pytest.raises(SpecError, match="is not an archive of a run"):
            read_archive(path)
    tar = lzma.decompress(data)
    for more in (b"x" * 512, bytes(4 << 20)):
        path.write_bytes(lzma.compress(tar + more))
        with pytest.raises(SpecError, match="it goes on behind its end"):
            read_archive(path)


def test_many_headers_are_refused(tmp_path):
    harmless = tarfile.TarInfo("manifest.json")
    harmless.pax_headers = {"mtime": "1.5"}
    pax = harmless.tobuf(tarfile.PAX_FORMAT)[:1024]
    path = tmp_path / "x.tar.xz"
    path.write_bytes(lzma.compress(pax * 10_000))
    with pytest.raises(SpecError, match="it has more than 32 members"):
        read_archive(path)


WORDS = [None, True, -1, 1e308, "", "x" * 99, [], [[]], {}, {"a": {}}, "star", ["gloo"], 10**30]


@pytest.mark.parametrize("seed", broad(range(20)))
def test_hostile_archives_are_read_or_refused(run, archive, tmp_path, seed):
    """Bytes of the archive and of its parts, and values in its manifest."""
    rng = random.Random(seed)
    path = tmp_path / "x.tar.xz"
    with tarfile.open(archive) as source:
        parts = {each.name: source.extractfile(each).read() for each in source}
    now = load_run(run)

    def read(data):
        path.write_bytes(data)
        found = read_archive(path)
        foreign_scenario(found.run.manifest["scenario"], (), "x")
        for each in results(found.run, now):
            tell(Results(True), [], [each], None)
        list(differences(found.run.manifest, now.manifest))

    def inside(data):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:xz", preset=0) as target:
            for name, content in {**parts, name_of: data}.items():
                target.addfile(member(name, size=len(content)), io.BytesIO(content))
        read(file.getvalue())

    assert refusals(read, [archive.read_bytes()], seed, 50, 64 << 20) > 20
    for name_of in ("results.parquet", "manifest.json"):
        refusals(inside, [parts[name_of]], seed, 20, 64 << 20)
    for _ in range(40):
        changed = json.loads(parts["manifest.json"])
        place = changed
        while isinstance(place, dict) and place:
            before, key = place, rng.choice(list(place))
            place = place[key] if rng.random() < 0.8 else None
        before[key] = rng.choice(WORDS)
        with suppress(SpecError):
            inside(json.dumps(changed).encode())


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("value", ["text", "x"]),
        ("value", [[1], [2]]),
        ("rank", [0.5, 1e300]),
        ("trial", [None, 1]),
        ("backend", [1, 2]),
        ("metric", [b"\xff", b"x"]),
        ("epoch", ["0", "x"]),
    ],
)
def test_columns_of_other_types_are_refused_or_compared(column, values, run, archive, tmp_path):
    now = load_run(run)
    frame = now.frame.head(2).assign(**{column: pd.Series(values, dtype=object)})
    frame.to_parquet(file := io.BytesIO(), index=False)
    path = changed(archive, tmp_path / "x.tar.xz", results_parquet=file.getvalue())
    with suppress(SpecError):
        list(results(read_archive(path).run, now))


def test_numbers_that_json_lacks_are_null(capsys):
    nan = Result("gloo", "last loss", "nat", float("nan"), float("inf"), 0.1)
    tell(Results(True), [], [nan], None)
    (said,) = json.loads(capsys.readouterr().out)["results"]
    assert (said["then"], said["now"], said["passed"]) == (None, None, False)


def test_a_disk_that_is_full_leaves_the_archive_from_before(run, archive, monkeypatch):
    before = archive.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_archive(run, PLAN, archive)
        with pytest.raises(OSError, match="File too large"):
            write_archive(run, PLAN, archive.with_name("new.tar.xz"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert archive.read_bytes() == before
    assert sorted(each.name for each in archive.parent.iterdir()) == ["run", "run.tar.xz"]


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
