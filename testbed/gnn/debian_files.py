"""Debian's packages, directories and file names as one graph, from this machine's APT lists.

APT's Contents indices say which file each package installs (Debian repository format, "Contents
indices"); APT fetches them once the package apt-file is installed. Vertices are packages, then
directories, then file names without their directory, each ascending. For each file there are edges
between its package and its name, its name and its directory, its directory and its package; others
lead from each directory to the one it is in, and between packages that are related, as in
`testbed.gnn.debian`. The adjacency holds both directions, without repeats.

Labels are packages' sections, and only packages are in training, validation and test set; the label
of others is 0. Features are hashed words: of a package's name and the first line of its
description, of a directory's path, of a file's name.
"""

import glob
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.files import most_expanded
from testbed.core.logs import logger_of
from testbed.gnn.datasets import PathName, SplitDataset
from testbed.gnn.debian import Related, digest_of, opened, package_lists, parse_relations
from testbed.gnn.features import hash_features
from testbed.gnn.graph import GraphData, cached, from_edges, random_split
from testbed.gnn.mix import GOLDEN, mix
from testbed.host import estimates

__all__ = ["DebianFilesSpec", "content_lists", "files_graph", "parse_contents"]

_BLOCK = 16 << 20  # bytes of text that are parsed at a time
_ENTRY = r"^(?P<path>.*\S)\s+(?P<where>\S+)$"
_WORDS = re.compile(r"[^A-Za-z0-9]+")
_ENTRY_BYTES = 550  # of a file in the indices, while it becomes edges
log = logger_of(__name__)


class DebianFilesSpec(SplitDataset):
    """Debian's packages, directories and file names, from this machine's APT lists."""

    name: Literal["debian-files"]
    lists: PathName = Field(default="/var/lib/apt/lists", description="folder of APT's lists")
    share: float = Field(
        default=1.0, gt=0, le=1, description="of packages that are taken, with their files"
    )
    feature_dim: int = Field(default=64, ge=8, le=1024)

    def prepare(self) -> Path:
        """See `Dataset.prepare`."""
        folder = Path(self.lists)
        packages, contents = package_lists(folder), content_lists(folder)
        key = digest_of([*packages, *contents], self.model_dump_json(exclude={"lists"}))

        def make() -> GraphData:
            log.info("parsing %d indices of files; done once, then kept", len(contents))
            started = time.perf_counter()
            with opened(packages) as stream:
                related = parse_relations(stream, self.lists)
            with opened(contents) as stream:
                graph = files_graph(parse_contents(stream, self.lists), related, self)
            seconds = time.perf_counter() - started
            log.info("made a graph of %d vertices in %.0f s", graph.num_vertices, seconds)
            return graph

        return cached(f"debian-files-{key}", make)


def content_lists(folder: Path) -> list[Path]:
    """Return APT's Contents indices in a folder, those of source packages left out.

    :raises SpecError: There is none; the text says how to get them.
    """
    found = sorted(glob.glob(f"{glob.escape(str(folder))}/*_Contents-*"))
    lists = [Path(path) for path in found if "_Contents-source" not in path]
    if not lists:
        raise SpecError(
            f'dataset.name = "debian-files": {folder} holds no Contents indices: run "apt-get'
            ' install apt-file" and "apt-get update"'
        )
    return lists


@dataclass(frozen=True)
class Files:
    """Which package installs which file; an entry for each pair.

    Each entry is a package, a directory and a name, by number; `texts` are theirs, ascending. A
    package is called as in the indices, with its section in front.
    """

    package: NDArray[np.int64]
    directory: NDArray[np.int64]
    name: NDArray[np.int64]
    texts: tuple[list[str], list[str], list[str]]

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.package)


def parse_contents(stream: IO[bytes], place: str) -> Files:
    """Parse Contents indices: a file's path, white space, and the packages that install it, with
    commas in between.

    :param place: The indices' folder, for errors.
    :raises SpecError: A line is something else, or they expand to too much.
    """
    columns: tuple[list[pa.Array], ...] = ([], [], [])
    for block in _blocks(stream, place):
        lines = pa.array(block.decode(errors="replace").splitlines())
        found = pc.extract_regex(lines, _ENTRY)
        if found.null_count:
            line = lines[pc.index(pc.is_null(found), True).as_py()].as_py()
            raise SpecError(f"{place}: the indices are broken: {line[:80]!r} names no package")
        path, where = pc.struct_field(found, "path"), pc.struct_field(found, "where")
        packages = pc.split_pattern(where, ",")
        entry = pc.list_parent_indices(packages)
        split = pc.extract_regex(path, r"^(?:(?P<directory>.*)/)?(?P<name>[^/]*)$")
        for column, values in zip(
            columns,
            (
                pc.list_flatten(packages),
                pc.struct_field(split, "directory").take(entry),
                pc.struct_field(split, "name").take(entry),
            ),
            strict=True,
        ):
            column.append(pc.fill_null(values, "").dictionary_encode())
    package, directory, name = map(_numbered, columns)
    return Files(package[0], directory[0], name[0], (package[1], directory[1], name[1]))


def _blocks(stream: IO[bytes], place: str) -> Iterator[bytes]:
    """Yield whole lines, about `_BLOCK` bytes at a time."""
    left, rest = most_expanded(), b""
    while block := stream.read(_BLOCK):
        left -= len(block)
        if left < 0:
            raise SpecError(
                f"{place}: the indices expand to more than {most_expanded() >> 20} MiB; set"
                " TESTBED_EXPAND_MIB to allow more"
            )
        whole, newline, after = (rest + block).rpartition(b"\n")
        if newline:
            yield whole
        rest = after
    if rest:
        yield rest


def _numbered(chunks: Sequence[pa.Array]) -> tuple[NDArray[np.int64], list[str]]:
    """Number the distinct texts in ascending order; return the number of each, and the texts."""
    if not chunks:
        return np.zeros(0, np.int64), []
    column = pa.chunked_array(chunks).unify_dictionaries().combine_chunks()
    order = pc.sort_indices(column.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[column.indices.to_numpy()], column.dictionary.take(order).to_pylist()


def files_graph(files: Files, related: Related, spec: DebianFilesSpec) -> GraphData:
    """Make the graph.

    :raises SpecError: It has fewer than 10 packages, or there is not enough memory.
    """
    estimates.check(
        {"entries": _ENTRY_BYTES * files.count}, f"dataset.share = {spec.share}: {spec.lists}"
    )
    bare = [text.rpartition("/")[2] for text in files.texts[0]]
    sections = dict(zip(related.packages, related.sections, strict=True))
    for text, package in zip(files.texts[0], bare, strict=True):
        sections.setdefault(package, (text.split("/")[-2:-1] or ["unknown"])[0])
    names = [package for package in sorted(sections) if _is_taken(package, spec)]
    if len(names) < 10:
        raise SpecError(
            f"dataset.share = {spec.share}: leaves {len(names)} packages: must leave 10 or more"
        )
    number = {package: index for index, package in enumerate(names)}
    owners = np.array([number.get(package, -1) for package in bare], np.int64)[files.package]
    taken = owners >= 0
    owners = owners[taken]
    paths, places = _closed(files.texts[1], files.directory[taken])
    used, called = np.unique(files.name[taken], return_inverse=True)
    first_path, first_name = len(names), len(names) + len(paths)
    count = first_name + len(used)
    estimates.check(
        estimates.hashed(count, spec.feature_dim), f"dataset.feature_dim = {spec.feature_dim}"
    )
    above = np.array([paths.get(path.rpartition("/")[0], -1) for path in paths], np.int64)
    inner = np.flatnonzero((above >= 0) & (above != np.arange(len(above))))  # not the root
    ends = np.array([number.get(package, -1) for package in related.packages], np.int64)
    relations = ends[np.array([related.source, related.target], np.int64)]
    relations = relations[:, (relations >= 0).all(axis=0)]
    places += first_path
    called = called + first_name
    indptr, indices = from_edges(
        np.concatenate([owners, called, places, first_path + inner, relations[0]]),
        np.concatenate([called, places, owners, first_path + above[inner], relations[1]]),
        count,
    )
    labels, y = np.unique(np.asarray([sections[name] for name in names]), return_inverse=True)
    descriptions = dict(zip(related.packages, related.descriptions, strict=True))

    def texts() -> Iterator[str]:
        for package in names:
            yield f"{_spaced(package)} {descriptions.get(package, '')}"
        yield from map(_spaced, paths)
        for index in used.tolist():
            yield _spaced(files.texts[2][index])

    train, val, test = random_split(len(names), spec.train_fraction, spec.val_fraction, spec.seed)
    return GraphData(
        name="debian-files",
        indptr=indptr,
        indices=indices,
        x=hash_features(texts(), spec.feature_dim, count),
        y=np.concatenate([y, np.zeros(count - len(names), np.int64)]).astype(np.int64),
        train=train,
        val=val,
        test=test,
        num_classes=len(labels),
        facts={
            "packages": len(names),
            "directories": len(paths),
            "file_names": len(used),
            "files": len(owners),
            "relations": relations.shape[1],
            "edges": len(indices) // 2,
            "sections": labels.tolist(),
        },
    )


def _is_taken(name: str, spec: DebianFilesSpec) -> bool:
    """Whether a package is in the share: a hash of its name decides, whatever the lists have."""
    return spec.share >= 1 or _draw(name, spec.seed) < spec.share


def _draw(name: str, seed: int) -> float:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    key = np.array([int.from_bytes(digest, "little")], np.uint64)
    return float(mix(key + np.uint64((seed + 1) * GOLDEN % 2**64))[0]) / 2.0**64


def _closed(
    texts: Sequence[str], used: NDArray[np.int64]
) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Return the paths of directories and of those that they are in, numbered in ascending order,
    and the numbers of those that are `used`.
    """
    some, place = np.unique(used, return_inverse=True)
    every: set[str] = set()
    for index in some.tolist():
        path = texts[index]
        while path not in every:
            every.add(path)
            path = path.rpartition("/")[0]
    paths = {path: number for number, path in enumerate(sorted(every))}
    return paths, np.array([paths[texts[index]] for index in some.tolist()], np.int64)[place]


def _spaced(text: str) -> str:
    """A name as words: what is between letters and digits becomes a space."""
    return _WORDS.sub(" ", text)
