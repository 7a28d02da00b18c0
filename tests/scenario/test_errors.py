"""The error corpus: each `errors/<case>.toml` is refused with exactly the text in
`errors/<case>.txt`.
"""

from pathlib import Path

import pytest

from testbed.core.errors import SpecError
from testbed.scenario import load_scenario

CORPUS = Path(__file__).parent / "errors"
CASES = sorted(path.stem for path in CORPUS.glob("*.toml"))


@pytest.mark.parametrize("case", CASES)
def test_text(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CORPUS)
    with pytest.raises(SpecError) as caught:
        load_scenario(Path(f"{case}.toml"))
    assert f"{caught.value}\n" == Path(f"{case}.txt").read_text()


def test_each_case_has_its_text() -> None:
    assert CASES
    assert sorted(path.stem for path in CORPUS.glob("*.txt")) == CASES
