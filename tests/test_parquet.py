"""Parquet files from elsewhere: what they expand to is known before it is allocated."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.core.errors import SpecError
from testbed.core.parquet import Parquet, read_frame
from tests.support.damage import little_memory, refusals
from tests.support.tiers import broad

MIB = 1 << 20


def written(columns: Any, **options: Any) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def repeated(value: Any, times: int) -> pa.Array:
    """One value many times, in a few bytes."""
    return pa.DictionaryArray.from_arrays(np.zeros(times, np.int8), pa.array([value]))


FRAME = pd.DataFrame(
    {
        "trial": pd.array([0, 1, 2], "int64"),
        "rank": pd.array([1, None, 3], "Int64"),
        "value": [0.5, float("nan"), float("inf")],
        "name": pd.array(["a", None, "ü"], "string"),
        "yes": [True, False, True],
    }
)


def test_numbers_truth_values_and_texts_come_back(tmp_path: Path) -> None:
    FRAME.to_parquet(place := tmp_path / "x.parquet", index=False)
    types = {"rank": "Int64", "trial": "int64"}
    pd.testing.assert_frame_equal(read_frame(place, "x", types), FRAME, check_dtype=False)
    found = read_frame(place.read_bytes(), "x", types)
    assert {name: str(kind) for name, kind in found.dtypes.items()} == {
        "trial": "int64",
        "rank": "Int64",
        "value": "float64",
        "name": "string",
        "yes": "bool",
    }


def test_headers_of_pages_have_the_sizes_that_metadata_have() -> None:
    values = np.arange(100_000)
    data = written({"a": values, "b": values % 7, "c": values.astype(str)}, row_group_size=30_000)
    metadata = pq.read_metadata(io.BytesIO(data))
    columns = [metadata.row_group(group).column(index) for group in range(4) for index in range(3)]
    sizes = Parquet(data, "x").pages()
    whole = sum(column.total_uncompressed_size for column in columns)
    assert len(sizes) > len(columns)
    assert whole - 100 * len(sizes) < sum(sizes) < whole  # with a header for each


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"a": repeated(7, 80_000_000)}, {}, "expands to 12"),
        ({"a": repeated("x" * MIB, 9_000)}, {}, "expands to 900"),
        ({"a": pa.nulls(80_000_000)}, {}, "expands to 12"),
        (
            {"a": repeated(b"x", 3)},
            {},
            "column 'a' is of dictionary<values=binary, indices=int8, ordered=0>: must be",
        ),
        ({"a": [[1], [2]]}, {}, "column 'a' is of list"),
        ({"a": [{"b": 1}]}, {}, "column 'a' is of struct"),
        (pa.table([[1], [2]], ["a", "a"]), {}, "each name once"),
        ({"b": [1]}, {}, "lacks the columns a"),
        ({"a": ["text"]}, {}, "does not hold what it must: "),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_a_table_may_not_be(columns: Any, options: Any, text: str) -> None:
    data = written(columns, **options)
    assert len(data) < 2 * MIB
    with little_memory(64 * MIB), pytest.raises(SpecError) as caught:
        read_frame(data, "x", {"a": "int64"})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("codec", ["zstd", "gzip", "brotli"])
def test_pages_that_expand_are_refused(codec: Any) -> None:
    column = pa.array(np.zeros(1 << 20, np.int64))
    bomb = written({"a": column}, compression=codec, use_dictionary=False, data_page_size=1 << 23)
    assert len(bomb) < 1 << 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTBED_EXPAND_MIB", "1")
        with little_memory(4 * MIB), pytest.raises(SpecError, match="expands to 2"):
            read_frame(bomb, "x", {})
        patch.setenv("TESTBED_EXPAND_MIB", "100")
        assert len(read_frame(bomb, "x", {})) == 1 << 20
        patch.setenv("TESTBED_EXPAND_MIB", "much")
        with pytest.raises(SpecError, match="TESTBED_EXPAND_MIB = 'much': must be a whole number"):
            read_frame(bomb, "x", {})


def test_what_pandas_notes_about_itself_is_not_believed() -> None:
    data = written({"a": [1, 2]})
    for note in (b"{", b"[]", b'{"index_columns": [{"kind": "range"}]}', b'{"columns": 3}'):
        table = pa.table({"a": [1, 2]}).replace_schema_metadata({b"pandas": note})
        assert read_frame(written(table), "x", {}).equals(read_frame(data, "x", {}))


def test_a_footer_that_is_too_large_is_refused() -> None:
    data = b"PAR1" + bytes(5 * MIB) + (5 * MIB).to_bytes(4, "little") + b"PAR1"
    with little_memory(MIB), pytest.raises(SpecError, match="bytes of metadata, more than"):
        read_frame(data, "x", {})


@pytest.mark.parametrize("seed", broad(range(20)))
def test_damaged_files_are_read_or_refused(seed: int) -> None:
    files = [
        written({"a": np.arange(50), "b": ["x", "y"] * 25, "c": np.linspace(0, 1, 50)}),
        written(FRAME.to_dict("list"), compression="zstd", data_page_version="2.0"),
    ]
    assert refusals(lambda data: read_frame(data, "x", {}), files, seed, 150, 256 * MIB) > 50
