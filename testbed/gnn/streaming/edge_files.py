"""Files of edges: Parquet, CSV and NPZ, read a batch at a time.

Parquet and CSV have a row per edge: the columns ``src`` and ``dst`` (or ``source`` and ``target``,
or DGL's ``src_id`` and ``dst_id``), else the first two. A CSV file may be without a header,
separated by commas, semicolons, tabs or blanks, and begin with comments (``#``), as SNAP's do. An
NPZ file has ``src`` and ``dst``, or ``edge_index`` of shape (2, m), or a CSR's ``indptr`` and
``indices``, compressed or not.
"""

import codecs
import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.core.files import most_expanded
from testbed.core.npy import ZIP_FAILURES, map_at, read_header
from testbed.core.numbers import cut, why
from testbed.core.parquet import Parquet
from testbed.gnn.streaming.edges import MOST_VERTICES, SAMPLE, Batch, Edges, Pair, narrow, rows_of

__all__ = ["CsvEdges", "NpzEdges", "ParquetEdges"]

NAMES: Final = (("src", "dst"), ("source", "target"), ("src_id", "dst_id"))
_LOCAL = 30  # bytes of a local file header (APPNOTE.TXT 4.3.7)
PLACES = 64
"""Places in a file that a sample is taken from."""


def ends_of(path: Path, columns: list[str]) -> list[str]:
    """Return the names of the two columns that are a file's edges.

    :raises SpecError: There are fewer than two.
    """
    for pair in NAMES:
        if set(pair) <= set(columns):
            return list(pair)
    if len(columns) < 2:
        raise SpecError(f"{path}: has {len(columns)} columns: must have two, src and dst")
    return columns[:2]


class ParquetEdges(Edges):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        self._found = Parquet(path, f"{path}: is no Parquet file, or is torn", buffer_size=1 << 20)
        self._found.check_pages()
        self._file, schema = self._found.file, self._found.schema
        self._ends = ends_of(path, schema.names)
        for name in self._ends:
            kinds = [each.type for each in schema if each.name == name]
            if len(kinds) > 1 or not pa.types.is_integer(kinds[0]):
                raise SpecError(
                    f"{path}: column {name}: has {cut(' and '.join(map(str, kinds)))}: must be"
                    " whole numbers"
                )
        self.num_edges, self.nbytes = self._found.rows, path.stat().st_size

    def batches(self, size: int) -> Iterator[Batch]:
        """See `Edges.batches`."""
        try:
            for batch in self._file.iter_batches(size, columns=self._ends):
                yield lambda batch=batch: self._pair(batch)  # type: ignore[misc]
        except (OSError, pa.ArrowException) as error:
            raise SpecError(f"{self._path}: cannot be read: {why(error)}") from error

    def sample(self) -> Pair:
        """The first edges of row groups. Where they are ordered by an end, this is spread evenly
        between the smallest and the largest of the row group instead.
        """
        count = len(self._found.groups)
        chosen = range(0, count, -(-count // PLACES)) if count else range(0)
        found: list[Pair] = []
        for number in chosen:
            rows = SAMPLE * self._found.groups[number].rows // (self.num_edges or 1)
            want = max(16, rows * count // len(chosen))
            try:
                batch = next(
                    self._file.iter_batches(want, row_groups=[number], columns=self._ends), None
                )
            except (OSError, pa.ArrowException) as error:
                raise SpecError(f"{self._path}: cannot be read: {why(error)}") from error
            if batch is not None:
                src, dst = self._pair(batch)
                found.append((self._spread(src, number, 0), self._spread(dst, number, 1)))
        return _joined(found)

    def _spread(self, ends: NDArray[np.uint32], number: int, which: int) -> NDArray[np.uint32]:
        if len(ends) < 2 or not bool((ends[1:] >= ends[:-1]).all()):
            return ends
        for column in self._found.groups[number].columns:
            if column.name == self._ends[which] and column.least and column.most:
                least, most = (int.from_bytes(end, "little") for end in (column.least, column.most))
                if least <= most <= MOST_VERTICES:
                    return np.linspace(least, most, len(ends)).astype(np.uint32)
        return ends

    def _pair(self, batch: Any) -> Pair:
        src, dst = (_numbers(self._path, batch, name) for name in self._ends)
        return src, dst


LINE = 1 << 16  # bytes, of a text file's longest line
BOM, COMMENT = codecs.BOM_UTF8, (b"#", b"%")


class CsvEdges(Edges):
    """A text file with an edge per line."""

    def __init__(self, path: Path) -> None:
        self.name, self._path, self.nbytes = str(path), path, path.stat().st_size
        skipped, head, line = 0, 0, b""
        with path.open("rb") as file:
            for line in iter(lambda: file.readline(LINE), b""):
                if len(line) == LINE:
                    raise SpecError(f"{path}: line {skipped + 1} has {LINE} bytes or more")
                if line.strip(BOM + b" \t\r\n") and not line.removeprefix(BOM).startswith(COMMENT):
                    break
                skipped, head = skipped + 1, head + len(line)
            else:
                line = b""
        text = line.decode("utf-8-sig", errors="replace").strip()
        marks = [mark for mark in (",", ";", "\t", " ") if mark in text]
        if not marks:
            raise SpecError(f"{path}: {cut(text)!r} is no edge: must be two numbers or names")
        fields = [field.strip().strip('"') for field in text.split(marks[0])]
        plain = all(field.lstrip("+-").isdigit() for field in fields[:2])
        names = [f"column {index + 1}" for index in range(len(fields))] if plain else fields
        self._ends = ends_of(path, names)
        self._skip = skipped + (not plain)
        self._names, self._mark = names, marks[0]
        self._head = head if plain else head + len(line)  # bytes before the first edge

    def _options(self, skip: int, block: int) -> dict[str, Any]:
        return {
            "read_options": pacsv.ReadOptions(
                column_names=self._names, skip_rows=skip, block_size=block
            ),
            "parse_options": pacsv.ParseOptions(delimiter=self._mark),
            "convert_options": pacsv.ConvertOptions(
                include_columns=self._ends, column_types=dict.fromkeys(self._ends, pa.int64())
            ),
        }

    def batches(self, size: int) -> Iterator[Batch]:
        """See `Edges.batches`."""
        if self._head == self.nbytes:
            return
        try:
            # Two numbers of 8 digits in a line, so that a block has about as many edges.
            with pacsv.open_csv(self._path, **self._options(self._skip, 16 * size)) as reader:
                for batch in reader:
                    yield lambda batch=batch: self._pair(batch)  # type: ignore[misc]
        except (OSError, pa.ArrowException) as error:
            raise SpecError(f"{self._path}: cannot be read: {why(error)}") from error

    def sample(self) -> Pair:
        """Lines of some kilobytes at regular distances."""
        length, found = self.nbytes - self._head, []
        with self._path.open("rb") as file:
            step = max(length // PLACES, 1)
            for place in range(self._head, self.nbytes, step):
                file.seek(place)
                if place > self._head:
                    file.readline(LINE)
                text = file.read(min(16 * SAMPLE // PLACES, step))
                text += file.readline(LINE)
                if not text.strip():
                    continue
                try:
                    table = pacsv.read_csv(io.BytesIO(text), **self._options(0, 1 << 20))
                except (OSError, pa.ArrowException) as error:
                    raise SpecError(f"{self._path}: cannot be read: {why(error)}") from error
                found += [self._pair(batch) for batch in table.to_batches()]
        return _joined(found)

    def _pair(self, batch: Any) -> Pair:
        src, dst = (_numbers(self._path, batch, name) for name in self._ends)
        return src, dst


class NpzEdges(Edges):
    """Arrays in an NPZ file; ``x`` and ``y``, if it has them, are features and labels."""

    def __init__(self, path: Path) -> None:
        self.name, self._path, self.nbytes = str(path), path, path.stat().st_size
        try:
            with zipfile.ZipFile(path) as archive:
                held = {name.removesuffix(".npy") for name in archive.namelist()}
        except ZIP_FAILURES as error:
            raise SpecError(f"{path}: is no NPZ file, or is torn: {why(error)}") from error
        for name, axes in (("x", 2), ("y", 1)):
            if name in held and len(shape := self._shape(name)) != axes:
                raise SpecError(f"{path}: {name}: has shape {shape}: must have {axes} axes")
        self._csr = {"indptr", "indices"} <= held
        if self._csr:
            indptr = self._whole("indptr")
            if indptr.ndim != 1 or not len(indptr) or indptr[0] or (np.diff(indptr) < 0).any():
                raise SpecError(f"{path}: indptr: must ascend from 0")
            self.indptr, self.num_vertices = indptr.astype(np.int64), len(indptr) - 1
            self._ends = ["indices"]
        elif "edge_index" in held:
            self._ends = ["edge_index"]
        else:
            named = [pair for pair in NAMES if set(pair) <= held]
            if not named:
                raise SpecError(
                    f"{path}: has {', '.join(sorted(held)) or 'nothing'}: must have src and dst,"
                    " edge_index, or indptr and indices"
                )
            self._ends = list(named[0])
        shapes = [self._shape(name) for name in self._ends]
        pair = self._ends == ["edge_index"]
        if any(len(s) != 1 + pair or (pair and s[0] != 2) for s in shapes) or len(set(shapes)) > 1:
            raise SpecError(f"{path}: {' and '.join(self._ends)}: shapes {shapes} are no edges")
        self.num_edges = int(shapes[0][-1])
        if self.indptr is not None and self.indptr[-1] != self.num_edges:
            raise SpecError(
                f"{path}: indptr: ends with {self.indptr[-1]} of {self.num_edges} edges"
            )
        if {"x", "y"} & held and self.num_vertices is None:
            self.num_vertices = self._shape("x" if "x" in held else "y")[0]
        self.features = self._of_vertices("x", held)
        self.labels = self._of_vertices("y", held)

    def batches(self, size: int) -> Iterator[Batch]:
        """See `Edges.batches`."""
        assert self.num_edges is not None
        streams = [_Array(self._path, name) for name in self._ends]
        if self._ends == ["edge_index"]:
            streams.append(_Array(self._path, "edge_index", self.num_edges))
        try:
            for first in range(0, self.num_edges, size):
                taken = [stream.take(min(size, self.num_edges - first)) for stream in streams]
                yield lambda first=first, taken=taken: self._pair(first, taken)  # type: ignore[misc]
        finally:
            for stream in streams:
                stream.close()

    def sample(self) -> Pair:
        """Every so many edges; a compressed file has to be read for it."""
        step = max((self.num_edges or 0) // SAMPLE, 1)
        mapped = [_mapped(self._path, name) for name in self._ends]
        if all(each is not None for each in mapped):
            ends = [each[..., ::step] for each in mapped if each is not None]
            return self._sampled(ends, step)
        pairs = (batch() for batch in self.batches(1 << 18))
        return _joined([(src[::step], dst[::step]) for src, dst in pairs])

    def _pair(self, first: int, taken: list[NDArray[Any]]) -> Pair:
        dst = narrow(taken[-1], f"{self._path}: {self._ends[-1]}")
        if self.indptr is not None:
            return rows_of(self.indptr, first, first + len(dst)), dst
        return narrow(taken[0], f"{self._path}: {self._ends[0]}"), dst

    def _sampled(self, ends: list[NDArray[Any]], step: int) -> Pair:
        place = f"{self._path}: {self._ends[-1]}"
        if self.indptr is not None:
            places = np.arange(0, self.num_edges or 0, step)
            sources = np.searchsorted(self.indptr, places, side="right") - 1
            return sources.astype(np.uint32), narrow(ends[0], place)
        src, dst = ends if len(ends) == 2 else ends[0]
        return narrow(src, place), narrow(dst, place)

    def _of_vertices(self, name: str, held: set[str]) -> NDArray[Any] | None:
        """An array with a row per vertex: mapped into memory, unless it is compressed."""
        if name not in held:
            return None
        mapped = _mapped(self._path, name)
        return self._whole(name) if mapped is None else mapped

    def _whole(self, name: str) -> NDArray[Any]:
        array = _Array(self._path, name)
        try:
            return array.whole()
        finally:
            array.close()

    def _shape(self, name: str) -> tuple[int, ...]:
        array = _Array(self._path, name)
        array.close()
        return array.shape


def _mapped(path: Path, name: str) -> NDArray[Any] | None:
    """Map an array of an NPZ file into memory; None if it is compressed."""
    array = _Array(path, name)
    array.close()
    entry = array.entry
    if entry.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        file.seek(entry.header_offset + _LOCAL - 4)  # of the local header: lengths of what follows
        begin = entry.header_offset + _LOCAL + sum(np.frombuffer(file.read(4), "<u2").tolist())
    return map_at(path, array.header, begin + array.header.length, f"{path}: {name}")


class _Array:
    """A member of an NPZ file, read from its beginning on.

    :param skip: Elements to skip.
    """

    def __init__(self, path: Path, name: str, skip: int = 0) -> None:
        self._place = f"{path}: {name}"
        try:
            with ExitStack() as undo:
                archive = undo.enter_context(zipfile.ZipFile(path))
                self.entry = archive.getinfo(f"{name}.npy")
                self._file = undo.enter_context(archive.open(self.entry))
                self.header = read_header(self._file, self._place)
                self.shape, self.dtype = self.header.shape, self.header.dtype
                if self.header.fortran and len(self.shape) > 1:
                    raise SpecError(f"{self._place}: must be an array in C's order")
                self._file.seek(self.header.length + skip * self.dtype.itemsize)
                self._open = undo.pop_all()
        except ZIP_FAILURES as error:
            raise SpecError(f"{self._place}: cannot be read: {why(error)}") from error

    def whole(self) -> NDArray[Any]:
        """Return all elements.

        :raises SpecError: The file is torn, or the array is compressed and too large.
        """
        size, most = self.header.nbytes, most_expanded()
        if self.entry.compress_type != zipfile.ZIP_STORED and size > most:
            raise SpecError(
                f"{self._place}: expands to {size >> 20} MiB: must be at most {most >> 20} MiB, or"
                " uncompressed; set TESTBED_EXPAND_MIB to allow more"
            )
        return self.take(math.prod(self.shape)).reshape(self.shape)

    def take(self, count: int) -> NDArray[Any]:
        """Return the next elements.

        :raises SpecError: The file is torn.
        """
        wanted = count * self.dtype.itemsize
        try:
            data = self._file.read(min(wanted, self.entry.file_size))
        except ZIP_FAILURES as error:
            raise SpecError(f"{self._place}: cannot be read: {why(error)}") from error
        if len(data) < wanted:
            raise SpecError(f"{self._place}: is torn: {len(data)} of {wanted} bytes are there")
        return np.frombuffer(data, self.dtype)

    def close(self) -> None:
        """Close the file."""
        self._open.close()


def _numbers(path: Path, batch: Any, name: str) -> NDArray[np.uint32]:
    column = batch.column(name)
    if column.null_count:
        raise SpecError(f"{path}: column {name}: has empty cells: must have a vertex in each")
    return narrow(column.to_numpy(zero_copy_only=False), f"{path}: column {name}")


def _joined(pairs: list[Pair]) -> Pair:
    if not pairs:
        return np.zeros(0, np.uint32), np.zeros(0, np.uint32)
    return np.concatenate([src for src, _ in pairs]), np.concatenate([dst for _, dst in pairs])
