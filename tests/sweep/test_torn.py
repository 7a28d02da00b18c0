"""Sweeps whose files are torn, as a power failure leaves them, and disks that are full."""

import errno
import json
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.loading import load
from testbed.cli.bench_trials import BenchTrials
from testbed.core.errors import FaultError, SpecError, StorageError
from testbed.core.files import read_object
from testbed.sweep import Ledger, Sweep, Trial, load_sweep, play
from testbed.sweep.player import facts_of, gather
from tests.support.command import PROGRAM
from tests.support.damage import refusals
from tests.support.sweep.counting import Counting
from tests.support.tiers import broad

SWEEP = """
[sweep]
name = "counts"
scenario = "none.toml"

[grid]
size = [1, 2, 3]
"""

TORN: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: bytes(len(data)),
    lambda data: data[: len(data) // 2],
    lambda data: b"[]",
    lambda data: b"{}",
    lambda data: b"null",
    lambda data: b'{"seconds": 1e999, "error": null}',
    lambda data: b'{"seconds": 1%s, "error": null}' % (b"0" * 400),
    lambda data: b'{"seconds": 1, "error": {}}',
    lambda data: b"\xff\xfe" + data,
    lambda data: b"[" * 100_000,
]


class Writing(Counting):
    """Each trial writes a file."""

    def run(self, trial: Trial, folder: Path) -> None:
        super().run(trial, folder)
        (folder / "bench.json").write_text(json.dumps({"rows": [{"value": 10}]}))

    def rows(self, trial: Trial, folder: Path) -> pd.DataFrame:
        place = folder / "bench.json"
        try:
            rows = read_object(place, 1 << 20)["rows"]
        except KeyError as error:
            raise SpecError(f"{place}: lacks {error}") from error
        return pd.DataFrame(rows).assign(trial=trial.number)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    place = tmp_path / "counts.toml"
    place.write_text(SWEEP)
    return load_sweep(place)


@pytest.fixture
def player(sweep: Sweep, tmp_path: Path) -> Writing:
    return Writing(sweep, tmp_path / "log")


def run(player: Writing, out: Path) -> list[str]:
    """What was begun, and what was said beside the numbers of trials."""
    begun, said = len(player.begun), []
    with Ledger(out, facts_of(player.sweep, player)) as ledger:
        play(player.sweep, player, ledger, said.append)
        gather(player.sweep, player, ledger)
    assert len(pd.read_parquet(out / "results.parquet")) == 3
    again = [line for line in said if "is run again" in line]
    assert all(str(out) in line for line in again)
    return player.begun[begun:]


@pytest.mark.parametrize("tear", TORN)
@pytest.mark.parametrize("name", ["trial.json", "bench.json"])
def test_a_trial_with_a_torn_file_is_run_again(
    player: Writing, tmp_path: Path, name: str, tear: Callable[[bytes], bytes]
) -> None:
    assert len(run(player, tmp_path / "out")) == 3
    place = tmp_path / "out" / "trials" / "1-0" / name
    if not place.parent.exists():  # names have as many digits as the grid needs
        place = sorted((tmp_path / "out" / "trials").iterdir())[1] / name
    place.write_bytes(tear(place.read_bytes()))
    assert run(player, tmp_path / "out") == [place.parent.name]
    assert run(player, tmp_path / "out") == []


@pytest.mark.parametrize("tear", [*TORN[:3], *TORN[9:]])
def test_a_torn_description_is_written_again(
    player: Writing, tmp_path: Path, tear: Callable[[bytes], bytes]
) -> None:
    out = tmp_path / "out"
    run(player, out)
    whole = (place := out / "sweep.json").read_bytes()
    place.write_bytes(tear(whole))
    with pytest.raises(SpecError, match=r"sweep\.json: cannot be read"):
        load(out)
    assert run(player, out) == []
    assert place.read_bytes() == whole
    place.write_bytes(tear(whole))
    player.sweep.path.write_text(SWEEP.replace("3]", "4]"))
    other = load_sweep(player.sweep.path)
    with pytest.raises(SpecError, match=r"sweep\.json is torn, and trial .* does not say that it"):
        Ledger.read(out, facts_of(other, player))
    place.unlink()
    place.with_name(".sweep.json.partial").write_bytes(whole[:9])
    assert run(player, out) == []


def test_a_folder_that_was_torn_at_once_is_a_new_one(player: Writing, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".sweep.json.partial").touch()
    assert len(run(player, tmp_path / "out")) == 3


@pytest.mark.parametrize("seed", broad(range(10)))
def test_damaged_ledgers_are_gone_on_with_or_refused(
    player: Writing, tmp_path: Path, seed: int
) -> None:
    out, facts = tmp_path / "out", facts_of(player.sweep, player)
    run(player, out)
    for name in ("sweep.json", "trials/0-0/trial.json"):
        place = out / name
        if not place.exists():
            place = next(out.glob("trials/*/trial.json"))
        whole = place.read_bytes()

        def read(data: bytes, place: Path = place) -> None:
            place.write_bytes(data)
            Ledger.read(out, facts)
            load(out)

        refusals(read, [whole], seed, 50, 16 << 20)
        place.write_bytes(whole)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": 1}', '{"rows": [1]}', "[" * 9999])
def test_a_bench_that_is_torn_is_one_line(tmp_path: Path, content: str) -> None:
    (place := tmp_path / "s.toml").write_text(
        '[sweep]\nname = "s"\nbench = "allreduce"\n[grid]\nhosts = [2]\n'
    )
    (tmp_path / "bench.json").write_text(content)
    sweep = load_sweep(place)
    with pytest.raises(SpecError, match=r"bench\.json: "):
        BenchTrials(sweep).rows(Trial(sweep.cells[0], 0), tmp_path)


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere")


def raise_cause() -> None:
    try:
        raise full()
    except OSError as error:
        raise FaultError("the log cannot be written") from error


def raise_stored() -> None:
    raise StorageError("/somewhere: cannot be written: No space left on device")


def raise_full() -> None:
    raise full()


def write_much(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        (folder / "large").write_bytes(bytes(1 << 17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "fail", [raise_full, raise_stored, raise_cause, lambda: write_much(Path.cwd())]
)
def test_a_full_disk_is_no_trials_result(
    player: Writing, tmp_path: Path, fail: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = tmp_path / "out"
    player.stops = lambda begun: fail() if begun == 2 else None
    with pytest.raises(StorageError, match="cannot be written: "):
        run(player, out)
    ends = list(out.glob("trials/*/trial.json"))
    assert len(ends) == len(list(out.glob("trials/*"))) == 1
    assert json.loads(ends[0].read_text())["error"] is None
    player.stops = lambda begun: None
    assert len(run(player, out)) == 2


SMALL = """
[scenario]
name = "small"
engine = "simulation"
[dnn]
model = "tests.support.workloads.networks:SMALL"
backends = ["tcp-ring"]
compute = 0.001
epochs = 1
steps = 1
"""
FULL = """
set -e
mount -t tmpfs -o size=80m none "$1"
head -c 30M /dev/zero > "$1/filler"
run() { shift; "$@" sweep ../s.toml --out out --workers 0 && echo done || echo "status $?"; }
cd "$1"
run "$@"
rm filler
run "$@"
"""


@pytest.mark.kernel
def test_a_sweep_goes_on_once_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "s.toml").write_text(
        '[sweep]\nname = "s"\nscenario = "small.toml"\n[grid]\nfabric.hosts = [2, 3]\n'
    )
    (disk := tmp_path / "disk").mkdir()
    command = ["unshare", "--mount", "bash", "-c", FULL, "bash", str(disk)]
    command += PROGRAM
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.splitlines() == ["status 1", "results: out/results.parquet", "done"]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "its disk has" in errors[0]
    assert errors[0].endswith("; the same command with --out out goes on")
    assert "Traceback" not in done.stderr


def test_what_cannot_be_gathered_is_one_line(
    player: Writing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(frame: pd.DataFrame, place: Path, **options: object) -> None:
        Path(place).write_bytes(b"PA")
        raise full()

    run(player, out := tmp_path / "out")
    before = (out / "results.parquet").read_bytes()
    monkeypatch.setattr(pd.DataFrame, "to_parquet", refuse)
    with pytest.raises(StorageError, match=r"results\.parquet: cannot be written: No space"):
        run(player, out)
    assert (out / "results.parquet").read_bytes() == before
    assert not list(out.glob(".*"))
