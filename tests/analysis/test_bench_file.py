"""Files of benches that another may have made: shown in a report, or refused in one line."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from analysis.bench import alone
from analysis.loading import load
from testbed.core.errors import SpecError
from tests.support.damage import refusals
from tests.support.tiers import broad

TIME = {"median": 2.0, "low": 1.0, "high": 3.0}
ROW = {"backend": "gloo", "size_bytes": 4096, "time_us": TIME, "iterations": 9}
BENCH = {"environment": {"hosts": 2, "mtu": 1500, "lanes": "int16"}, "rows": [ROW, ROW]}


@pytest.mark.parametrize(
    "changed",
    [
        {"environment": []},
        {"rows": []},
        {"rows": {"a": 1}},
        {"rows": [{**ROW, "backend": ["gloo"]}]},
        {"rows": [{**ROW, "size_bytes": "4K"}]},
        {"rows": [{**ROW, "size_bytes": 10**30}]},
        {"rows": [{**ROW, "iterations": None}]},
        {"rows": [{**ROW, "time_us": {**TIME, "median": 0}}]},
        {"rows": [{**ROW, "time_us": {**TIME, "median": float("nan")}}]},
        {"rows": [{**ROW, "time_us": {**TIME, "low": "1"}}]},
        {"rows": [{**ROW, "time_us": {**TIME, "high": None}}]},
    ],
)
def test_a_bench_of_other_values_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    (place := tmp_path / "bench.json").write_text(json.dumps({**BENCH, **changed}))
    refused = r"--bench .*bench\.json: cannot be read: .* -o FILE"
    with pytest.raises(SpecError, match=refused) as caught:
        alone(tmp_path)
    assert "\n" not in str(caught.value)
    with suppress(SpecError):
        load(place)


@pytest.mark.parametrize("seed", broad(range(10)))
def test_damaged_benches_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        (tmp_path / "bench.json").write_bytes(data)
        alone(tmp_path)
        load(tmp_path / "bench.json")

    assert refusals(read, [json.dumps(BENCH).encode()], seed, 100, 32 << 20) > 50
