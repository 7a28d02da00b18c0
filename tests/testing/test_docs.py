"""What docs/testing.md shows works as it stands there."""

import pytest

from tests.support.testing.helpers import examples, run_pytest

pytestmark = pytest.mark.net


@pytest.mark.parametrize("name", examples())
def test_example(name, tmp_path):
    done = run_pytest(tmp_path, examples()[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
