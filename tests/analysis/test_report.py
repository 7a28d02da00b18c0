"""The report is self-contained, figures have their CSV, and the exit status says whether tolerances
are met.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from analysis.bench import read_bench
from analysis.figures import FIGURES
from analysis.report import ROOT, Grid, main, make_report
from testbed.core.errors import SpecError
from testbed.results import RunFolder, Table, load_run
from tests.support.command import call_testbed
from tests.support.tiers import broad

RunMaker = Callable[..., Path]


class References(HTMLParser):
    """Collects everything that a browser would load, and checks that opened tags are closed."""

    VOID = {"meta", "img", "br"}

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "srcset", "data", "action")
        ]
        assert tag not in ("script", "link", "iframe", "object")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        # The template omits none of the end tags that HTML makes optional in tables.
        assert self.open.pop() == tag


def test_report_is_one_file(reported: Path) -> None:
    html = (reported / "report.html").read_text()
    parser = References()
    parser.feed(html)
    assert parser.open == []
    assert len(parser.found) == len(FIGURES)
    assert all(reference.startswith("data:image/png;base64,") for reference in parser.found)
    assert not re.search(r"https?://|url\(|@import", html)


def test_report_mentions_events_that_never_happened(make_run: RunMaker) -> None:
    def late(table: Table) -> None:
        table.add(
            0, "gloo", "fault_events", 0, "events", epoch=0, labels={"fault": "kill host=h3 at=9s"}
        )
        table.add(0, "gloo", "fault_log_lost", 5, "frames", epoch=0)

    html = make_report(make_run(faults=late))[0].read_text()
    assert html.count("Caution: ") == 2
    assert "<tr><td>kill host=h3 at=9s</td><td>gloo</td><td>0</td><td>1</td></tr>" in html


@pytest.mark.parametrize(
    ("faults", "offload", "header", "caption"),
    broad(
        [
            ((), "on", "offloads on for sockets,", "with offloads on, one may carry up to 64 KiB."),
            (
                ("link-down host=h3 at=20ms for=50ms",),
                "on",
                "offloads on for sockets,",
                "one may carry up to 64 KiB.",
            ),
            (
                (),
                "off",
                "offloads off for sockets,",
                "with segmentation offloads off, each is a frame.",
            ),
            (
                ("drop p=0.01",),
                "on",
                "segmentation offloads off for sockets,",
                "with segmentation offloads off, each is a frame.",
            ),
        ],
        0,
    ),
)
def test_report_gives_the_offloads_of_the_run(
    make_run: RunMaker, faults: tuple[str, ...], offload: str, header: str, caption: str
) -> None:
    html = make_report(make_run(scenario_faults=faults, offload=offload))[0].read_text()
    assert header in html
    assert caption in html
    assert html.count("offloads on") == (2 if header.startswith("offloads on") else 0)


@pytest.mark.deep
def test_report_names_the_command_that_makes_it_again(
    make_run: RunMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run()
    monkeypatch.chdir(ROOT)
    given = Path(os.path.relpath(path))
    html = make_report(given)[0].read_text()
    printed = re.search(r"<code>(\.venv/bin/python -m analysis\.report .*?)</code>", html)
    assert printed
    assert printed[1] == f".venv/bin/python -m analysis.report {given}"
    _, *arguments = shlex.split(printed[1])
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{given}/report.html"
    monkeypatch.chdir(tmp_path)
    assert f"-m analysis.report {path}<" in make_report(Path("run"))[0].read_text()


def test_report_shows_the_bench_of_the_same_machine(make_run: RunMaker, reported: Path) -> None:
    path = make_run()
    assert "All-reduce alone" not in (reported / "report.html").read_text()
    times = {"xdp-ring": 200.0, "tcp-ring": 500.0, "gloo": 5000.0}
    rows = [
        {"backend": name, "size_bytes": 65536, "time_us": {"median": time}}
        for name, time in times.items()
    ]
    environment = {"hosts": 4, "mtu": 1500, "lanes": "int16"}
    bench = path / "bench.json"
    bench.write_text(json.dumps({"environment": environment, "rows": rows}))
    report, _ = make_report(path)
    text = report.read_text()
    assert "<td>64K</td>" in text
    assert "2.50×" in text
    assert "4 hosts, MTU 1500,\nint16 lanes" in text


def test_a_row_has_a_text_for_each_column() -> None:
    with pytest.raises(ValueError, match="row time: 1 texts for 2 columns"):
        Grid(["a", "b"], [("time", ["1 s"])])


@pytest.mark.parametrize("content", ["", "[]", '{"rows": [{}]}'])
def test_a_file_that_is_no_bench_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(SpecError, match=r"--bench .*b.json: cannot be read: .* -o FILE"):
        read_bench(tmp_path / "b.json")


@pytest.mark.deep
def test_report_of_a_run_with_faults_does_not_suggest_them(make_run: RunMaker) -> None:
    text = make_report(make_run(scenario_faults=("drop p=0.5",)))[0].read_text()
    assert "What to try next:" in text
    assert "--fault &#39;drop p=0.01&#39;" not in text


def test_report_answers_first_and_escapes(reported: Path) -> None:
    html = (reported / "report.html").read_text()
    assert html.index("xdp-ring was fastest") < html.index("<table>")
    assert "Numbers &lt;known&gt; &amp; exact" in html
    assert "testbed run &#39;made up.toml&#39;" in html
    assert "all 4 tolerance checks passed" in html
    assert "<td>share of the epoch</td><td>17%</td><td>29%</td><td>44%</td>" in html
    assert "offloads on for sockets," in html
    assert "What to try next:" in html
    assert "--fault &#39;drop p=0.01&#39;" in html


def test_figures_have_their_csv(reported: Path) -> None:
    figures = reported / "figures"
    names = sorted(FIGURES)
    assert sorted(p.stem for p in figures.glob("*.png")) == names
    assert sorted(p.stem for p in figures.glob("*.csv")) == names
    loss = pd.read_csv(figures / "loss.csv")
    assert list(loss.columns) == ["trial", "epoch", "backend", "loss"]
    assert loss[loss["backend"] == "gloo"]["loss"].tolist() == pytest.approx([2, 1, 2 / 3])
    split = pd.read_csv(figures / "epoch_time.csv").set_index("backend")
    assert split.loc["tcp-ring", "communicate"] == pytest.approx(0.24)


@pytest.mark.deep
def test_a_report_made_again_is_the_same(
    make_run: RunMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run()
    first = make_report(path)[0].read_bytes()
    assert main([str(path)]) == 0
    assert (path / "report.html").read_bytes() == first
    assert capsys.readouterr().out.strip() == str(path / "report.html")
    elsewhere = path.parent / "elsewhere.html"
    done = call_testbed("report", str(path), "--out", str(elsewhere))
    assert (done.returncode, done.stdout) == (0, f"report: {elsewhere}\n")
    assert elsewhere.read_bytes() == first


@pytest.mark.deep
def test_a_users_matplotlib_has_no_part_in_it(make_run: RunMaker, tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.family: none of these\n")
    environment = {"MATPLOTLIBRC": str(tmp_path), "MPLBACKEND": "none", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "analysis.report", str(make_run())],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.17×" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_accuracy_over_nothing_is_absent(make_run: RunMaker) -> None:
    path = make_run({"gloo": 0.4, "tcp-ring": 0.6})
    run = load_run(path)
    empty = run.frame["metric"].isin({"test_accuracy", "validation_accuracy"})
    RunFolder.existing(path).write("results.parquet", run.frame[~empty].to_parquet)
    report, found = make_report(path)
    assert [check.what for check in found] == ["loss"]
    html = report.read_text()
    assert "nan" not in html
    assert "<td>none</td><td>none</td>" in html


def test_a_missed_tolerance_is_reported_and_fails(make_run: RunMaker) -> None:
    path = make_run(accuracy={"gloo": 0.5})
    assert main([str(path)]) == 1
    assert "1 of 4 tolerance checks failed" in (path / "report.html").read_text()


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 1
    assert "is not the folder of a finished run" in capsys.readouterr().err
