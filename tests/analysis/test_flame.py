"""Flame graphs of invented stacks."""

import re
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from analysis.flame import flame_graph, folded_lines, trees
from testbed.cli import app
from testbed.core.errors import SpecError
from testbed.results import RunFolder, StackLog, load_run, load_stacks
from testbed.telemetry.stacks import Stack, fold

TAG = "bpf_prog_0123456789abcdef_ring_link"
STACKS = (
    Stack("h1", False, "tcp", fold(("tcp_sendmsg", "do_syscall_64"), ("ring.so!<send>",)), 60, 40),
    Stack("h1", False, "reduce", fold((), ("ring.so!<send>",)), 30, 0),
    Stack("h1", True, "program.ring_link", fold((TAG, "handle_softirqs"), ()), 10, 10),
    Stack("h10", False, "model", fold((), ("libtorch.so!add",)), 5, 0),
    Stack("h2", False, "model", fold((), ("libtorch.so!add",)), 5, 0),
    Stack("machine", False, "outside", "", 1000, 1000),
)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(make_run):
    path = make_run()
    log = StackLog()
    log.add(0, "xdp-ring", 1, 100, STACKS)
    log.write(RunFolder.existing(path))
    return path


def test_a_tree_has_the_samples_of_what_it_called(run):
    found = trees(load_stacks(run))
    assert list(found) == ["h1", "h2", "h10", "machine"]
    h1 = found["h1"]
    assert h1.samples == 100
    assert {name: each.samples for name, each in h1.calls.items()} == {
        "processes": 90,
        "in softirq": 10,
    }
    sending = h1.calls["processes"].calls["ring.so!<send>"]
    assert sending.samples == 90
    assert sending.calls["do_syscall_64"].calls["tcp_sendmsg"].samples == 60
    assert "ring_link [BPF]" in h1.calls["in softirq"].calls["handle_softirqs"].calls
    assert trees(load_stacks(run), inside=True)["h1"].samples == 50


def test_several_backends_stand_apart(run):
    log = StackLog()
    for backend in ("xdp-ring", "tcp-ring"):
        log.add(0, backend, 1, 100, STACKS)
    assert set(trees(log.frame())["h1"].calls) == {"xdp-ring", "tcp-ring"}


def test_folded_lines(run):
    lines = list(folded_lines(load_stacks(run)))
    sent = "h1;xdp-ring;processes;ring.so!<send>;do_syscall_64_[k];tcp_sendmsg_[k] 60"
    assert sent in lines
    assert "machine;xdp-ring;processes 1000" in lines
    assert len(lines) == len(STACKS)


def test_the_svg_is_well_formed_and_needs_nothing_else(run):
    text = flame_graph(load_run(run), load_stacks(run))
    root = ElementTree.fromstring(text)
    assert not re.search(r"(?:src|href)=|@import|url\(", text)
    boxes = [each for each in root.iter(f"{SVG}g") if each.get("class") == "f"]
    titles = [box.findtext(f"{SVG}title") for box in boxes]
    assert "ring.so!<send>: 0.9 s, 90.00 %" in titles
    for box in boxes:
        rect = box.find(f"{SVG}rect")
        assert float(rect.get("x")) >= 10
        assert float(rect.get("x")) + float(rect.get("width")) <= 1190.01
        assert 0 <= float(rect.get("y")) <= float(root.get("height"))


def test_the_command_writes_what_was_chosen(run, tmp_path):
    svg, folded = tmp_path / "out.svg", tmp_path / "out.txt"
    chosen = ["--nodes", "h1", "--inside", "--flame", str(svg), "--folded", str(folded)]
    result = CliRunner().invoke(app, ["trace", str(run), *chosen])
    assert result.exit_code == 0, result.output
    assert "h10" not in svg.read_text()
    assert len(folded.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], r"--flame: is missing: must name the SVG to write; or give --folded"),
        (["--flame", "x.svg", "--nodes", "h7"], r"--nodes: 'h7': must be one or more of h1, "),
        (["--flame", "x.svg", "--nodes", "h2", "--inside"], r"has no samples of what was chosen"),
    ],
)
def test_what_it_refuses(run, tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["trace", str(run), *arguments])
    assert isinstance(result.exception, SpecError)
    assert re.search(text, str(result.exception))
    assert not (tmp_path / "x.svg").exists()


def test_a_run_without_telemetry_is_refused_in_one_line(make_run, tmp_path):
    path = make_run()
    svg = str(tmp_path / "x.svg")
    result = CliRunner().invoke(app, ["trace", str(path), "--flame", svg])
    assert str(result.exception) == (
        f"{path}: has no stacks: it was run without telemetry (add --telemetry), or"
        " stacks.parquet is gone"
    )
