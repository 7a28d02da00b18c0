"""The examples in docs/testing.md work as they are."""

import pytest

from tests.support.testing.helpers import examples, run_pytest
from tests.support.tiers import broad

pytestmark = pytest.mark.net


@pytest.mark.parametrize("name", broad(examples()))
def test_example(name, tmp_path):
    done = run_pytest(tmp_path, examples()[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.deep
def test_a_program_of_ones_own(tmp_path):
    """The whole example of docs/programs.md."""
    files = examples("programs.md")
    (tmp_path / "counter.bpf.c").write_text(files["counter.bpf.c"])
    done = run_pytest(tmp_path, files["test_counter.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
