"""Native libraries: compiled once per content; errors carry the compiler's message."""

import ctypes
import os
import subprocess

import pytest

from testbed import native
from testbed.core.errors import TestbedError


@pytest.fixture
def sources(tmp_path, monkeypatch):
    native.load.cache_clear()
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    monkeypatch.setattr(native, "BUILD", tmp_path / "build")
    yield tmp_path
    native.load.cache_clear()


def test_compiles_once_and_again_when_the_source_changes(sources):
    (sources / "answer.c").write_text("int answer(void);\nint answer(void) { return 42; }\n")
    first = native.compile_native("answer")
    stamp = first.stat().st_mtime_ns
    assert native.compile_native("answer") == first
    assert first.stat().st_mtime_ns == stamp
    assert native.load("answer").answer() == 42

    (sources / "answer.c").write_text("int answer(void);\nint answer(void) { return 43; }\n")
    second = native.compile_native("answer")
    assert second != first
    assert ctypes.CDLL(str(second)).answer() == 43


def test_what_another_worker_has_compiled_meanwhile_stays(sources, monkeypatch):
    (sources / "answer.c").write_text("int answer(void);\nint answer(void) { return 42; }\n")
    target = native.compile_native("answer")
    theirs = target.rename(sources / "theirs.so")
    run = subprocess.run

    def overtaken(command, **options):
        done = run(command, **options)
        if "-o" in command:
            os.link(theirs, target)
        return done

    monkeypatch.setattr(subprocess, "run", overtaken)
    assert native.compile_native("answer") == target
    assert target.samefile(theirs)
    assert list(target.parent.iterdir()) == [target]


def test_refusals(sources):
    (sources / "broken.c").write_text("int broken(void) { return nothing; }\n")
    with pytest.raises(TestbedError, match=r"(?s)exited with 1:.*undeclared identifier 'nothing'"):
        native.compile_native("broken")
    assert not list((sources / "build").rglob("*.so"))
    with pytest.raises(TestbedError, match="'absent' does not exist: must be one of broken"):
        native.load("absent")
