"""The folder of a run: only one run at a time uses it, and a previous run stays until the new one
is complete.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from testbed.core.errors import SpecError, StorageError, TestbedError
from testbed.results import KILLED, RunFolder, folder, settle
from testbed.results.folder import LEAST_FREE, OWN, read_manifest

BUSY = "another run is being written there: choose another folder"


def fill(taken: RunFolder, mark: str) -> None:
    """Write the files of a run."""
    taken.write_manifest({"mark": mark})
    for name in ("results.parquet", "stacks.parquet", "bench.json", "report.html"):
        taken.write(name, lambda place: place.write_text(mark))
    (taken.path / "figures").mkdir()
    (taken.path / "figures" / "loss.png").write_text(mark)


def fail_to_replace(out: Path, mark: str, error: TestbedError, publish: bool = False) -> None:
    """A run that has measured something and then fails."""
    with RunFolder(out, overwrite=True) as taken:
        fill(taken, mark)
        if publish:
            taken.publish()
        raise error


def mark_of(path: Path) -> set[str]:
    """The runs to which the files belong."""
    texts = [
        (path / name).read_text() for name in ("results.parquet", "report.html", "figures/loss.png")
    ]
    return {*texts, json.loads((path / "manifest.json").read_text())["mark"]}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A previous run, and files next to it that belong to no run."""
    path = tmp_path / "run"
    with RunFolder(path) as taken:
        fill(taken, "old")
    (path / "notes.txt").write_text("mine")
    (path / "more" / "of").mkdir(parents=True)
    (path / "more" / "of" / "mine").write_text("mine, too")
    (path / "link").symlink_to("nowhere")
    return path


def test_a_run_that_was_killed_is_known_by_the_lock_that_it_no_longer_holds(
    tmp_path: Path,
) -> None:
    with RunFolder(tmp_path / "run") as taken:
        taken.write_manifest({"status": "running", "mark": "here"})
        assert read_manifest(taken.path)["status"] == "running"
        settle(taken.path)
    killed = read_manifest(taken.path)
    assert (killed["status"], killed["error"]) == (KILLED, "the process that ran it was killed")
    assert json.loads((taken.path / "manifest.json").read_text())["status"] == "running"
    settle(taken.path)
    assert json.loads((taken.path / "manifest.json").read_text()) == killed
    settle(tmp_path)  # without a manifest there is nothing to settle


def test_a_new_folder_belongs_to_one_run_only(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "new")
    with RunFolder(tmp_path / "new"):
        for name in ("new", "alias"):
            for overwrite in (False, True):
                with pytest.raises(SpecError) as refused:
                    RunFolder(tmp_path / name, overwrite)
                assert str(refused.value) == f"--out {tmp_path / name}: {BUSY}"
    assert not (tmp_path / "new").exists()
    with RunFolder(tmp_path / "new"):
        pass


def test_a_replaced_folder_belongs_to_one_run_only(out: Path) -> None:
    with RunFolder(out, overwrite=True) as taken:
        fill(taken, "new")
        with pytest.raises(SpecError, match=BUSY):
            RunFolder(out, overwrite=True)
        taken.publish()
        with pytest.raises(SpecError, match=BUSY):
            RunFolder(out, overwrite=True)
    assert mark_of(out) == {"new"}


HOLDER = """
import sys
from pathlib import Path
from testbed.core.errors import SpecError
from testbed.results import RunFolder
sys.stdin.readline()
try:
    folder = RunFolder(Path(sys.argv[1]))
except SpecError as error:
    print(error, flush=True)
else:
    folder.write_manifest({})
    print("mine", flush=True)
sys.stdin.readline()
"""


def test_one_of_many_runs_gets_the_folder_and_a_kill_releases_it(tmp_path: Path) -> None:
    out = tmp_path / "new"
    command = [sys.executable, "-c", HOLDER, str(out)]
    runs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        for run in runs:
            assert run.stdin
            run.stdin.write("go\n")
            run.stdin.flush()
        said = [run.stdout.readline().strip() for run in runs if run.stdout]
        assert sorted(said) == [f"--out {out}: {BUSY}"] * 2 + ["mine"]
        with pytest.raises(SpecError, match=BUSY):
            RunFolder(out, overwrite=True)
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    with RunFolder(out, overwrite=True) as taken:
        assert taken.replaces


def test_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    for overwrite in (False, True):
        with pytest.raises(SpecError, match="holds files that are no run's: choose another folder"):
            RunFolder(tmp_path, overwrite)
    assert (tmp_path / "thesis.tex").exists()


def test_a_previous_run_is_replaced_only_when_asked(out: Path) -> None:
    with pytest.raises(
        SpecError, match="holds a previous run: choose another folder, or add --overwrite"
    ):
        RunFolder(out)
    assert mark_of(out) == {"old"}


@pytest.mark.parametrize(
    "flag", [folder.RENAME_EXCHANGE, 1 << 7], ids=["exchange", "a disk that cannot exchange"]
)
def test_a_previous_run_stays_until_the_new_one_is_complete(
    out: Path, flag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "RENAME_EXCHANGE", flag)  # the kernel refuses unknown flags
    out.chmod(0o750)
    with RunFolder(out, overwrite=True) as taken:
        assert taken.path == out.with_name("run.partial")
        fill(taken, "new")
        assert mark_of(out) == {"old"}
        (out / "late.txt").write_text("mine, last")
        taken.publish()
        assert (taken.path, taken.replaces) == (out, False)
        assert mark_of(out) == {"new"}
    assert {path.name for path in out.iterdir()} == {
        *OWN,
        "notes.txt",
        "more",
        "link",
        "late.txt",
    } - {"faults.parquet"}
    assert (out / "notes.txt").read_text() == "mine"
    assert (out / "more" / "of" / "mine").read_text() == "mine, too"
    assert (out / "link").readlink() == Path("nowhere")
    assert out.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in out.parent.iterdir()] == ["run"]


def test_readers_see_a_whole_run_at_any_time(out: Path) -> None:
    done = threading.Event()

    def replace() -> None:
        try:
            for number in range(50):
                with RunFolder(out, overwrite=True) as taken:
                    fill(taken, str(number))
                    taken.publish()
        finally:
            done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    looks = 0
    while not done.is_set():
        here = os.open(out, os.O_RDONLY | os.O_DIRECTORY)  # whichever run it currently is
        try:
            files = [
                os.open(name, os.O_RDONLY, dir_fd=here)
                for name in ("manifest.json", "results.parquet")
            ]
        except FileNotFoundError:  # it has since been replaced and removed
            assert not os.path.samestat(os.fstat(here), os.stat(out))
        else:
            for file in files:
                os.close(file)
            looks += 1
        os.close(here)
    writer.join()
    assert looks
    assert mark_of(out) == {"49"}


def test_a_run_that_fails_leaves_the_previous_one_and_says_where_its_own_results_are(
    out: Path,
) -> None:
    for name in ("run.partial", "run.partial-2"):  # nothing of a failed run is lost either
        with pytest.raises(TestbedError) as failed:
            fail_to_replace(out, name, TestbedError("worker h2 exited with 1"))
        partial = out.with_name(name)
        assert (
            str(failed.value)
            == f"worker h2 exited with 1; results so far are in {partial}; the previous run is"
            f" still in {out}"
        )
        assert mark_of(partial) == {name}
        assert mark_of(out) == {"old"}
    assert (out / "notes.txt").exists()


def test_a_run_that_has_measured_nothing_leaves_nothing(out: Path) -> None:
    def run() -> None:
        with RunFolder(out, overwrite=True) as taken:
            taken.write_manifest({})
            raise TestbedError("no rights")

    with pytest.raises(TestbedError) as failed:
        run()
    assert str(failed.value) == f"no rights; the previous run is still in {out}"
    assert [path.name for path in out.parent.iterdir()] == ["run"]


def test_a_new_run_that_fails_says_where_its_results_are(tmp_path: Path) -> None:
    with pytest.raises(TestbedError) as failed:
        fail_to_replace(tmp_path / "run", "new", TestbedError("no rights"))
    assert str(failed.value) == f"no rights; results so far are in {tmp_path}/run"


def test_a_run_that_ends_in_the_middle_of_replacing_loses_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(one: Path, other: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(folder, "exchange", fail)
    with pytest.raises(StorageError) as failed:
        fail_to_replace(out, "new", TestbedError("it did not"), publish=True)
    assert (
        str(failed.value)
        == f"--out {out}: cannot be replaced: Input/output error; results so far are in"
        f" {out}.partial; the previous run is still in {out}"
    )
    assert mark_of(out) == {"old"}
    assert mark_of(out.with_name("run.partial")) == {"new"}
    assert (out / "more" / "of" / "mine").read_text() == "mine, too"


def test_a_link_to_a_folder_stays_one(out: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(out)
    with RunFolder(link, overwrite=True) as taken:
        assert taken.path == out.with_name("run.partial")
        fill(taken, "new")
        taken.publish()
    assert link.is_symlink()
    assert mark_of(link) == mark_of(out) == {"new"}


def test_the_current_folder_cannot_be_replaced(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out / "more")
    for name in (out, Path("..")):
        with pytest.raises(SpecError, match="is the current folder, which cannot be replaced"):
            RunFolder(name, overwrite=True)
    assert mark_of(out) == {"old"}


def test_a_mount_point_cannot_be_replaced(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path == out)
    with pytest.raises(
        SpecError,
        match="is a mount point, which cannot be replaced: choose another folder",
    ):
        RunFolder(out, overwrite=True)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/run"):
        with pytest.raises(
            StorageError, match=rf"--out .*{name}: cannot be written: Not a directory"
        ):
            RunFolder(tmp_path / name)


def test_full_disk_is_noticed_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=LEAST_FREE - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="its disk has 63 MiB left: must be at least 64 MiB"):
        RunFolder(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_empty_folder_goes_again_if_the_run_made_it(tmp_path: Path) -> None:
    with RunFolder(tmp_path):
        pass
    with RunFolder(tmp_path / "new"):
        pass
    assert tmp_path.exists()
    assert not (tmp_path / "new").exists()
    with RunFolder(tmp_path / "new") as taken:
        taken.write_manifest({})
    assert (tmp_path / "new" / "manifest.json").exists()
