"""Parquet files that may come from elsewhere: bounded by what they expand to before they are read.

A file of a few kilobytes can stand for terabytes: a page of zeros, a run of one value, a text that
is referred to a million times. What its metadata say may be wrong. So the headers of its pages are
read here, and texts stay encoded as a dictionary until their lengths are known.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from testbed.core.errors import SpecError
from testbed.core.files import most_expanded
from testbed.core.numbers import cut, shown, why
from testbed.core.thrift import BrokenThrift, read_struct

__all__ = ["Parquet", "read_frame"]

T = TypeVar("T")

LARGEST_FOOTER: Final = 4 << 20  # bytes; they become a hundred times as many in memory
LARGEST_HEADER: Final = 1 << 16  # bytes of a page's
CELL: Final = 16  # bytes of a number, or of a reference to a text, while both forms are in memory
MOST_COLUMNS: Final = 4096

FAILURES: Final = (OSError, pa.ArrowException)


@dataclass(frozen=True)
class Column:
    """A column in a group of rows.

    :param start: Where its pages begin in the file; `end`: behind them.
    :param least: Its smallest value, as stored; empty if it is not known; `most` likewise.
    """

    name: str
    start: int
    end: int
    least: bytes
    most: bytes


@dataclass(frozen=True)
class RowGroup:
    """A group of rows."""

    rows: int
    columns: tuple[Column, ...]


class Parquet:
    """A file whose metadata are not too large.

    :param source: The file, or what it holds.
    :param name: Stands at the start of errors.
    :param options: Of `pyarrow.parquet.ParquetFile`.
    :ivar file: pyarrow's. Of its metadata only the schema may be looked at: pyarrow ends the
        process where others contradict each other.
    :ivar groups: The groups of rows.
    :raises SpecError: It is no Parquet file, or is torn.
    """

    def __init__(self, source: Path | bytes, name: str, **options: Any) -> None:
        self._source = BytesIO(source) if isinstance(source, bytes) else source
        self._name = name
        try:
            with self._opened() as file:
                self.groups = [_row_group(group) for group in _part(_footer(file), 4, list)]
            self.file = pq.ParquetFile(self._source, **options)
            self.schema = self.file.schema_arrow
            self.schema.names  # noqa: B018  # must be text
        except (*FAILURES, ValueError) as error:
            raise SpecError(f"{name}: cannot be read: {why(error)}") from error

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(group.rows for group in self.groups)

    def pages(self) -> list[int]:
        """Return the sizes of all pages, uncompressed.

        :raises SpecError: The file is torn.
        """
        try:
            with self._opened() as file:
                return list(_pages(file, self.groups))
        except (*FAILURES, ValueError) as error:
            raise SpecError(f"{self._name}: cannot be read: {why(error)}") from error

    def check_pages(self) -> None:
        """Check that no page expands to more than `most_expanded`: of a file that is read in
        batches.

        :raises SpecError: One does, or the file is torn.
        """
        _check(self._name, max(self.pages(), default=0), most_expanded())

    def _opened(self) -> Any:
        """Open it for a context, unless it lies in memory."""
        source = self._source
        return nullcontext(source) if isinstance(source, BytesIO) else source.open("rb")


def read_frame(source: Path | bytes, name: str, columns: Mapping[str, str]) -> pd.DataFrame:
    """Read a whole file: numbers, truth values and texts.

    :param name: Stands at the start of errors.
    :param columns: Types by name of those that must be there. Of others, texts are ``string``.
    :raises SpecError: It cannot be read, lacks columns, has others than these types, or expands to
        more than `most_expanded`.
    """
    most = most_expanded()
    found = Parquet(source, name)
    try:
        texts = _check_schema(found.schema, name, columns)
        need = sum(found.pages()) + CELL * found.rows * len(found.schema)
        _check(name, need, most)
        table = Parquet(source, name, read_dictionary=texts).file.read()
        _check(name, need + sum(map(_expanded, table.columns)), most)
        for index, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                plain = table.column(index).cast(pa.large_string())
                table = table.set_column(index, field.name, plain)
        # pandas' own metadata could name any type, index and class.
        frame = table.replace_schema_metadata().to_pandas(
            types_mapper={pa.large_string(): pd.StringDtype()}.get
        )
        with np.errstate(all="ignore"):  # pandas itself notices what does not fit
            return frame.astype(dict(columns))
    except FAILURES as error:
        raise SpecError(f"{name}: cannot be read: {why(error)}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise SpecError(f"{name}: does not hold what it must: {why(error)}") from error


def _check(name: str, need: int, most: int) -> None:
    if need > most:
        raise SpecError(
            f"{name}: expands to {need >> 20} MiB: must be at most {most >> 20} MiB; set"
            " TESTBED_EXPAND_MIB to allow more"
        )


def _check_schema(schema: Any, name: str, columns: Collection[str]) -> list[str]:
    """Return the names of the columns of texts."""
    if len(schema) > MOST_COLUMNS or len(set(schema.names)) < len(schema):
        raise SpecError(f"{name}: must have {MOST_COLUMNS} or fewer columns, each name once")
    if missing := [each for each in columns if each not in schema.names]:
        raise SpecError(f"{name}: lacks the columns {', '.join(missing)}")
    texts = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts.append(field.name)
        elif kind != field.type or not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_null(kind)
        ):
            raise SpecError(
                f"{name}: column {shown(field.name)} is of {cut(str(field.type))}: must be of"
                " numbers, truth values or texts"
            )
    return texts


def _expanded(column: Any) -> int:
    """Bytes of the texts in a column, each as often as it is referred to."""
    size = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type) and len(chunk.dictionary):
            lengths = pc.binary_length(chunk.dictionary).to_numpy(zero_copy_only=False)
            used = chunk.indices.drop_null().to_numpy(zero_copy_only=False)
            size += int(np.nan_to_num(lengths).astype(np.int64)[used].sum())
    return size


def _footer(file: IO[bytes]) -> Any:
    """Return a file's metadata (parquet.thrift: ``FileMetaData``)."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 8:
        raise BrokenThrift("its end is not that of a Parquet file")
    if length > LARGEST_FOOTER:
        raise BrokenThrift(f"has {length} bytes of metadata, more than {LARGEST_FOOTER}")
    file.seek(size - 8 - length)
    return read_struct(file.read(length))[0]


def _row_group(found: Any) -> RowGroup:
    return RowGroup(_whole(found, 3), tuple(map(_column, _part(found, 1, list))))


def _column(found: Any) -> Column:
    """Return what ``ColumnChunk`` and its ``ColumnMetaData`` say."""
    about = _part(found, 3, dict)
    start, size, dictionary = _whole(about, 9), _whole(about, 7), about.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    path = [part for part in _part(about, 3, list) if isinstance(part, bytes)]
    statistics = about.get(12)
    known = statistics if isinstance(statistics, dict) else {}
    least, most = (value if isinstance(value := known.get(end), bytes) else b"" for end in (6, 5))
    return Column(b".".join(path).decode(errors="replace"), start, start + size, least, most)


def _pages(file: IO[bytes], groups: Sequence[RowGroup]) -> Iterator[int]:
    """Yield the sizes of all pages, uncompressed (``PageHeader``)."""
    columns = [each for group in groups for each in group.columns]
    if sum(each.end - each.start for each in columns) > file.seek(0, os.SEEK_END):
        raise BrokenThrift("its columns have more bytes than it has")
    for column in columns:
        place = column.start
        while place < column.end:
            file.seek(place)
            header, length = read_struct(file.read(LARGEST_HEADER))
            yield _whole(header, 2)
            place += length + _whole(header, 3)


def _part(found: Any, field: int, kind: type[T]) -> T:
    value = found.get(field) if isinstance(found, dict) else None
    if not isinstance(value, kind):
        raise BrokenThrift("metadata lack what Parquet's have")
    return value


def _whole(found: Any, field: int) -> int:
    value = _part(found, field, int)
    if value < 0:
        raise BrokenThrift("metadata have a size that is negative")
    return value
