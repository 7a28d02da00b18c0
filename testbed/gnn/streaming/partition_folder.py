"""A partition on disk: written part by part while edges pass, and read by ranks.

``manifest.json``
    Format, policy, sizes, measures, and the files of each part with their bytes.
``part-H/edges.parquet``
    ``src``, ``dst``: uint32, vertices of the whole graph.
``part-H/vertices.parquet``
    ``vertex``: uint32, ``master``: uint16. Those that the part is master of come first, ascending,
    then its mirrors, ascending. The row is the vertex's number within the part.
``part-H/features.npy``, ``part-H/labels.npy``
    Those of the vertices that the part is master of, in this order, if the graph has any.
"""

import json
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from testbed.core.closing import Stacked
from testbed.core.errors import SpecError, StorageError
from testbed.core.files import read_object, sync, sync_tree
from testbed.core.npy import map_array
from testbed.core.numbers import why
from testbed.core.parquet import Parquet
from testbed.gnn.streaming.edge_policy import Masters, Vertices
from testbed.gnn.streaming.edges import check_vertices
from testbed.host import estimates

__all__ = ["FORMAT", "Part", "PartitionFolder", "PartitionWriter", "make_folder", "make_scratch"]

FORMAT: Final = {"format": "testbed-partition", "version": 1}
_EDGES = pa.schema([("src", pa.uint32()), ("dst", pa.uint32())])
_VERTICES = pa.schema([("vertex", pa.uint32()), ("master", pa.uint16())])
_ROW_GROUP = 1 << 16  # vertices
_ROW = 24  # bytes of a row while it is read, and of its numbers afterwards
_BLOCK = 1 << 22  # bytes of features at a time
_LARGEST_MANIFEST = 16 << 20


def make_folder(path: Path) -> None:
    """Make a folder that ``--out`` names, if it is not there.

    :raises SpecError: Its parent does not exist.
    :raises StorageError: It cannot be made.
    """
    if not path.absolute().parent.is_dir():
        raise SpecError(f"--out: {path}: must be a folder in an existing one")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"--out {path}: cannot be written: {error.strerror}") from error


def make_scratch(out: Path, purpose: str = "") -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder beside a folder that ``--out`` names.

    :raises SpecError: The parent does not exist.
    :raises StorageError: It cannot be made.
    """
    parent = out.absolute().parent
    if not parent.is_dir():
        raise SpecError(f"--out: {out}: must be a folder in an existing one")
    try:
        return tempfile.TemporaryDirectory(dir=parent, prefix=f".{out.name}-{purpose}")
    except OSError as error:
        raise StorageError(f"--out {out}: cannot be written: {error.strerror}") from error


class PartitionWriter(Stacked):
    """Writes a partition into a folder, which appears when it is complete.

    :param out: The folder: a new one, or an empty one.
    :param rows: Edges that a part collects before it writes them.
    :raises SpecError: It has something in it, or its parent does not exist.
    """

    def __init__(self, out: Path, parts: int, rows: int) -> None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise SpecError(f"--out: {out}: is not empty: must be a new folder")
        self._out, self._parts, self._rows = out, parts, rows
        self._waiting: list[list[tuple[Vertices, Vertices]]] = [[] for _ in range(parts)]
        self._held = [0] * parts
        self.edges = np.zeros(parts, np.int64)

    def _enter(self, stack: ExitStack) -> None:
        self.place = Path(stack.enter_context(make_scratch(self._out)))
        for part in range(self._parts):
            (self.place / f"part-{part}").mkdir()
        self._files = [
            stack.enter_context(_parquet(self.place / f"part-{part}" / "edges.parquet", _EDGES))
            for part in range(self._parts)
        ]

    def add(self, part: int, src: Vertices, dst: Vertices) -> None:
        """Add edges to a part."""
        self.edges[part] += len(src)
        if not self._held[part] and len(src) >= self._rows:
            return self._write(part, src, dst)
        self._waiting[part].append((src.copy(), dst.copy()))
        self._held[part] += len(src)
        if self._held[part] >= self._rows:
            self._flush(part)
        return None

    def finish(
        self,
        part: int,
        vertices: Vertices,
        masters: Masters,
        features: NDArray[Any] | None,
        labels: NDArray[Any] | None,
    ) -> None:
        """Complete a part.

        :param vertices: Those that it is master of, then its mirrors, ascending each.
        :param masters: Of `vertices`.
        :param features: Of the whole graph.
        """
        self._flush(part)
        self._files[part].close()
        folder = self.place / f"part-{part}"
        with _parquet(folder / "vertices.parquet", _VERTICES) as file:
            file.write_table(pa.table([vertices, masters], _VERTICES), row_group_size=_ROW_GROUP)
        own = vertices[: int(np.count_nonzero(masters == part))]
        for name, values in (("features", features), ("labels", labels)):
            if values is not None:
                _copy_rows(folder / f"{name}.npy", values, own)

    def publish(self, facts: dict[str, Any]) -> None:
        """Write the manifest, and put the folder into its place.

        :param facts: What the manifest says beside its format and files.
        """
        parts = [
            {
                "folder": folder.name,
                "edges": int(self.edges[part]),
                "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
            }
            for part, folder in enumerate(
                self.place / f"part-{part}" for part in range(self._parts)
            )
        ]
        text = json.dumps({**FORMAT, **facts, "part_files": parts}, indent=1)
        try:
            (self.place / "manifest.json").write_text(text, encoding="utf-8")
            os.chmod(self.place, 0o755)
            sync_tree(self.place)
            os.rename(self.place, self._out)
            sync(self._out.absolute().parent)
        except OSError as error:
            raise StorageError(f"--out {self._out}: cannot be written: {error.strerror}") from error
        self.place.mkdir()  # TemporaryDirectory removes it

    def _flush(self, part: int) -> None:
        if waiting := self._waiting[part]:
            self._write(part, *(np.concatenate(ends) for ends in zip(*waiting, strict=True)))
            self._waiting[part], self._held[part] = [], 0

    def _write(self, part: int, src: Vertices, dst: Vertices) -> None:
        self._files[part].write_table(pa.table([src, dst], _EDGES))


def _parquet(path: Path, schema: Any) -> Any:
    # Numbers of vertices hardly repeat within a row group and do not compress: encoding them would
    # take longer than writing them does.
    return pq.ParquetWriter(path, schema, use_dictionary=False, compression="none")


def _copy_rows(path: Path, values: NDArray[Any], rows: Vertices) -> None:
    shape = (len(rows), *values.shape[1:])
    size = max(1, _BLOCK // max(1, values[:1].nbytes))
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(values[:0])
        np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
        for first in range(0, len(rows), size):
            file.write(np.ascontiguousarray(values[rows[first : first + size]]).data)


@dataclass(frozen=True)
class Part:
    """What a rank has.

    :param src: int64, shape (m,): sources of its edges, as rows of `vertices`; `dst` likewise.
    :param vertices: Shape (k,): the `num_masters` vertices that it is master of, then its mirrors.
    :param masters: Shape (k,): the part that is master of each.
    :param features: Shape (num_masters, dim), mapped into memory, or None; `labels` likewise.
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    vertices: Vertices
    masters: Masters
    num_masters: int
    features: NDArray[Any] | None
    labels: NDArray[Any] | None


class PartitionFolder:
    """A partition that `PartitionWriter` wrote, or that follows its format.

    :raises SpecError: It is none: the text says what it lacks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = read_object(path / "manifest.json", _LARGEST_MANIFEST)
        if manifest.get("format") != FORMAT["format"]:
            raise SpecError(f"{path}: manifest.json is not that of a partition")
        if manifest.get("version") != FORMAT["version"]:
            raise SpecError(
                f"{path}: has version {manifest.get('version')!r} of the format: must be"
                f" {FORMAT['version']}"
            )
        self.manifest: dict[str, Any] = manifest
        try:
            self.parts, self.num_vertices = int(manifest["parts"]), int(manifest["num_vertices"])
            self._files = [dict(part["files"]) for part in manifest["part_files"]]
            if self.num_vertices < 0:
                raise ValueError(f"num_vertices = {self.num_vertices}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SpecError(f"{path}: manifest.json is broken: {error!r}") from error
        if len(self._files) != self.parts:
            raise SpecError(f"{path}: manifest.json has {len(self._files)} of {self.parts} parts")

    def vertices(self, number: int) -> tuple[Vertices, Masters]:
        """Read the vertices of a part, and the master of each.

        :raises SpecError: As in `part`.
        """
        path = self._file(number, "vertices.parquet")
        vertices, masters = _columns(path, _VERTICES)
        for name, found, count in (
            ("vertex", vertices, self.num_vertices),
            ("part", masters, self.parts),
        ):
            if len(found) and found.max() >= count:
                raise SpecError(f"{path}: has {name} {found.max()}: must be less than {count}")
        return vertices, masters

    def part(self, number: int) -> Part:
        """Read a part.

        :raises SpecError: A file is missing, torn, or not what the manifest says.
        """
        folder, files = self.path / f"part-{number}", self._files[number]
        for name in files:
            self._file(number, name)
        src, dst = _columns(folder / "edges.parquet", _EDGES)
        vertices, masters = self.vertices(number)
        own = masters == number
        count = int(np.count_nonzero(own))
        if not own[:count].all():
            raise SpecError(f"{folder}/vertices.parquet: masters must come before mirrors")
        for found in (src, dst):
            check_vertices(found, self.num_vertices, f"{folder}/edges.parquet")
        estimates.check(
            {"numbers of vertices": 8 * self.num_vertices},
            f"{self.path}: num_vertices = {self.num_vertices}",
        )
        local = np.full(self.num_vertices, -1, np.int64)
        local[vertices] = np.arange(len(vertices))
        ends = local[src], local[dst]
        if any((each < 0).any() for each in ends):
            raise SpecError(f"{folder}/edges.parquet: has a vertex that vertices.parquet lacks")
        features, labels = (
            _mapped(folder / f"{name}.npy", count) if f"{name}.npy" in files else None
            for name in ("features", "labels")
        )
        return Part(*ends, vertices, masters, count, features, labels)

    def _file(self, number: int, name: str) -> Path:
        path, size = self.path / f"part-{number}" / name, self._files[number].get(name)
        found = path.stat().st_size if path.is_file() else None
        if found is None or found != size:
            what = "is missing" if found is None else f"has {found} bytes: is torn or foreign"
            raise SpecError(f"{path}: {what}: the manifest says {size} bytes")
        return path


def _columns(path: Path, schema: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    found = Parquet(path, f"{path}: is torn or foreign")
    if not found.schema.equals(schema):
        raise SpecError(
            f"{path}: has columns {found.schema.names}: must be {schema.names}, unsigned"
        )
    found.check_pages()
    estimates.check({"rows": _ROW * found.rows}, f"{path}: {found.rows} rows")
    try:
        table = found.file.read()
    except (OSError, pa.ArrowException) as error:
        raise SpecError(f"{path}: is torn or foreign: {why(error)}") from error
    if any(column.null_count for column in table.columns):
        raise SpecError(f"{path}: has empty cells: must have a number in each")
    first, second = (column.to_numpy() for column in table.columns)
    return first, second


def _mapped(path: Path, rows: int) -> NDArray[Any]:
    found = map_array(path, f"{path}: is torn or foreign")
    if found.shape[:1] != (rows,):
        raise SpecError(f"{path}: has shape {found.shape}: must have {rows} rows")
    return found
