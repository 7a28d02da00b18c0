"""The run's folder, its table's schema, and reading it back."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from testbed.core.errors import SpecError, StorageError
from testbed.host.machine import cpu_model, git_commit, versions
from testbed.results import COLUMNS, RunFolder, Table, digest, load_run
from testbed.scenario import parse_scenario

SCENARIO = parse_scenario(
    {
        "scenario": {"name": "small"},
        "dataset": {"name": "synthetic"},
        "collective": {"backends": ["gloo"]},
    }
).model_dump(mode="json")


def filled() -> Table:
    table = Table(SCENARIO)
    table.add(0, "gloo", "epoch_time", 1.5, "s", rank=2, epoch=0)
    table.add(0, "gloo", "test_accuracy", 0.75, "1")
    return table


def test_schema_and_parameters() -> None:
    frame = filled().frame()
    assert {column: str(frame[column].dtype) for column in COLUMNS} == COLUMNS
    assert list(frame.columns[: len(COLUMNS)]) == list(COLUMNS)
    assert frame["hosts"].tolist() == [4, 4]
    assert frame["rank"].isna().tolist() == [False, True]
    assert frame["fabric.mtu"].tolist() == [1500, 1500]
    assert json.loads(frame["model.fanout"][0]) == [10, 5]
    assert "fabric.k" not in frame  # not set, so no parameter of this run


def test_round_trip(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.write_manifest({"scenario": SCENARIO, "status": "complete"})
        filled().write(folder)
    run = load_run(folder.path)
    assert run.manifest["status"] == "complete"
    assert run.backends == ["gloo"]
    assert run.metric("epoch_time")["value"].tolist() == [1.5]
    pd.testing.assert_frame_equal(run.frame[list(COLUMNS)], filled().frame()[list(COLUMNS)])
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "manifest.json",
        "results.parquet",
    ]


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    folder = RunFolder.existing(tmp_path)
    folder.write("a", lambda place: place.write_text("old"))

    def half(place: Path) -> None:
        place.write_text("ne")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageError, match="a: cannot be written: No space left on device"):
        folder.write("a", half)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_loading_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"is not the folder of a finished run: .*manifest\.json is missing"
    ):
        load_run(tmp_path)
    for text in ("{", "[" * 5000, "[]"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(SpecError, match=r"manifest\.json: cannot be read"):
            load_run(tmp_path)


def test_the_environment_is_this_machines() -> None:
    assert cpu_model()
    assert versions()["numpy"]
    commit = git_commit()
    assert commit is None or len(commit.rstrip("+")) == 40
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ("interrupted", "its status is interrupted, and nothing was measured"),
        ("complete", r".*results\.parquet is missing"),
    ],
)
def test_a_run_without_results(tmp_path: Path, status: str, why: str) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.write_manifest({"scenario": SCENARIO, "status": status})
    with pytest.raises(SpecError, match=f"is not the folder of a finished run: {why}$"):
        load_run(folder.path, finished=False)


def test_a_failed_run_is_not_a_finished_one(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.write_manifest({"scenario": SCENARIO, "status": "failed"})
        filled().write(folder)
    with pytest.raises(
        SpecError, match="is not the folder of a finished run: its status is failed"
    ):
        load_run(folder.path)


FULL = """
import sys
from pathlib import Path
from testbed.core.errors import StorageError
from testbed.results import RunFolder, Table
path = Path(sys.argv[1]) / "run"
path.mkdir()
folder = RunFolder.existing(path)
folder.write_manifest({"status": "running"})
with (path / "filler").open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError as error:
        print(error.strerror)
table = Table({"fabric": {"hosts": 1}})
for number in range(10000):
    table.add(0, "gloo", "epoch_time", number / 7, "s")
for write in (lambda: table.write(folder), lambda: folder.write_manifest({"status": "complete", "x": "x" * 100000})):
    try:
        write()
    except StorageError as error:
        print(error)
print(sorted(entry.name for entry in path.iterdir()), (path / "manifest.json").read_text().count("running"))
try:
    RunFolder(path, overwrite=True)
except StorageError as error:
    print(error)
"""  # noqa: E501


@pytest.mark.kernel
def test_a_disk_that_fills_up_is_an_error(tmp_path: Path) -> None:
    # A separate mount namespace: the small disk disappears with the process.
    mounted = 'mount -t tmpfs -o size=256k none "$2" && exec "$0" -c "$1" "$2"'
    command = ["unshare", "--mount", "sh", "-c", mounted, sys.executable, FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "No space left on device",
        f"{tmp_path}/run/results.parquet: cannot be written: No space left on device",
        f"{tmp_path}/run/manifest.json: cannot be written: No space left on device",
        "['filler', 'manifest.json'] 1",
        f"--out {tmp_path}/run: cannot be written: No space left on device; choose another folder",
    ]
