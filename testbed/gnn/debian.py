"""Debian's package graph, parsed from the APT lists of this machine.

Vertices are binary packages, one per name: if several lists or architectures have it, the highest
version counts. Edges are the relations Depends, Pre-Depends, Recommends and Suggests (Debian
Policy, section 7.2), with one edge for each alternative of a relation; the adjacency holds both
directions. A relation on a virtual package (Policy, section 7.5) is an edge to each of its
providers. A relation on a name that is also a real package is an edge to that package alone. Names
that no package has or provides are counted and left out. Labels are sections without their archive
area (``contrib/utils`` is ``utils``); features are the hashed words of the description's first
line, which is all that the lists contain of it.
"""

import glob
import hashlib
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from debian.deb822 import Packages
from debian.debian_support import Version
from pydantic import Field

from testbed.core.errors import SpecError
from testbed.core.files import check_regular, most_expanded
from testbed.core.logs import logger_of
from testbed.core.numbers import cut
from testbed.gnn.datasets import PathName, SplitDataset
from testbed.gnn.features import hash_features
from testbed.gnn.graph import GraphData, cached, from_edges, random_split
from testbed.host import estimates

__all__ = [
    "DebianSpec",
    "Related",
    "debian_graph",
    "digest_of",
    "opened",
    "package_lists",
    "parse_packages",
    "parse_relations",
]

APT_HELPER = "/usr/lib/apt/apt-helper"  # reads lists in any compression that APT uses
LONGEST_LINE = 1 << 20  # bytes; the longest of Debian 12 has some kilobytes
RELATIONS = ("pre-depends", "depends", "recommends", "suggests")
log = logger_of(__name__)


class DebianSpec(SplitDataset):
    """Debian's package graph, from this machine's APT lists."""

    name: Literal["debian"]
    lists: PathName = Field(default="/var/lib/apt/lists", description="folder of APT's lists")
    feature_dim: int = Field(default=512, ge=8, le=8192)

    def prepare(self) -> Path:
        """See `Dataset.prepare`."""
        return debian_graph(self)


def package_lists(folder: Path) -> list[Path]:
    """Return APT's Packages lists in a folder.

    :raises SpecError: There is none; the text says how to get them.
    """
    lists = sorted(Path(path) for path in glob.glob(f"{glob.escape(str(folder))}/*_Packages*"))
    if not lists or not Path(APT_HELPER).exists():
        missing = (
            f"{folder} holds no APT package lists" if not lists else f"{APT_HELPER} is missing"
        )
        raise SpecError(
            f'dataset.name = "debian": {missing}: run "apt-get update" on a box with Debian or'
            ' Ubuntu, or choose another data set ("planetoid" or "synthetic")'
        )
    return lists


def debian_graph(spec: DebianSpec) -> Path:
    """Return the cached folder of the package graph, parsing the lists first if they are new (about
    10 s).

    :raises SpecError: There are no lists, or they cannot be read.
    """
    lists = package_lists(Path(spec.lists))
    terms = f"{spec.feature_dim}/{spec.train_fraction}/{spec.val_fraction}/{spec.seed}"

    def make() -> GraphData:
        log.info("parsing %d package lists in %s; done once, then kept", len(lists), spec.lists)
        started = time.perf_counter()
        with opened(lists) as stream:
            graph = parse_packages(stream, spec)
        log.info("parsed %d packages in %.1f s", graph.num_vertices, time.perf_counter() - started)
        return graph

    return cached(f"debian-{digest_of(lists, terms)}", make)


def digest_of(lists: Sequence[Path], terms: str) -> str:
    """Return a hash of the content of lists, and of what is made of them.

    :raises SpecError: One cannot be read.
    """
    digest = hashlib.blake2b(digest_size=12)
    for path in lists:
        check_regular(path)
        try:
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)  # continues the same digest
        except OSError as error:
            raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    digest.update(terms.encode())
    return digest.hexdigest()


@contextmanager
def opened(lists: Sequence[Path]) -> Iterator[IO[bytes]]:
    """Read lists, one after another, in any compression that APT uses.

    :raises SpecError: They cannot be read.
    """
    command = [APT_HELPER, "cat-file", *map(str, lists)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as helper:
        assert helper.stdout is not None
        assert helper.stderr is not None
        yield helper.stdout
        complaint = helper.stderr.read().decode(errors="replace").strip()
    if helper.returncode:
        raise SpecError(f"{lists[0].parent}: {APT_HELPER} could not read the lists: {complaint}")


@dataclass(frozen=True)
class Related:
    """Packages and their relations.

    :param packages: The paragraph of each, by name, ascending.
    :param source: Numbers of packages, by edge; `target` likewise.
    :param facts: Counts of packages and relations.
    """

    packages: Mapping[str, Any]
    source: list[int]
    target: list[int]
    facts: Mapping[str, int]

    @property
    def sections(self) -> list[str]:
        """Each package's section without its archive area."""
        found = (str(each.get("section", "unknown")) for each in self.packages.values())
        return [section.rpartition("/")[2] for section in found]

    @property
    def descriptions(self) -> Iterator[str]:
        """The first line of each package's description."""
        for each in self.packages.values():
            yield str(each.get("description", "")).partition("\n")[0]


def parse_packages(stream: IO[bytes], spec: DebianSpec) -> GraphData:
    """Parse Packages paragraphs (deb822) into a graph.

    :param stream: The lists, one after another.
    :raises SpecError: There are fewer packages than a split needs, a paragraph is broken, or there
        is not enough memory for the features.
    """
    related = parse_relations(stream, spec.lists)
    count = len(related.packages)
    if count < 10:
        raise SpecError(f"{spec.lists}: the lists hold {count} packages: must be 10 or more")
    estimates.check(
        estimates.hashed(count, spec.feature_dim), f"dataset.feature_dim = {spec.feature_dim}"
    )
    labels, y = np.unique(np.asarray(related.sections), return_inverse=True)
    train, val, test = random_split(count, spec.train_fraction, spec.val_fraction, spec.seed)
    indptr, indices = from_edges(
        np.asarray(related.source, np.int64), np.asarray(related.target, np.int64), count
    )
    return GraphData(
        name="debian",
        indptr=indptr,
        indices=indices,
        x=hash_features(related.descriptions, spec.feature_dim, count),
        y=y.astype(np.int64),
        train=train,
        val=val,
        test=test,
        num_classes=len(labels),
        facts={**related.facts, "edges": len(indices) // 2, "sections": labels.tolist()},
    )


def parse_relations(stream: IO[bytes], place: str) -> Related:
    """Parse Packages paragraphs (deb822).

    :param stream: The lists, one after another.
    :param place: Their folder, for errors.
    :raises SpecError: A paragraph is broken.
    """
    try:
        packages = _newest(Packages.iter_paragraphs(_lines(stream, place), use_apt_pkg=False))
    except KeyError as error:
        raise SpecError(f"{place}: the lists are broken: a paragraph lacks {error.args[0]}") from (
            error
        )
    except ValueError as error:  # UnicodeDecodeError, too
        raise SpecError(f"{place}: the lists are broken: {cut(str(error))}") from error
    names = sorted(packages)
    number = {name: index for index, name in enumerate(names)}
    providers: defaultdict[str, list[int]] = defaultdict(list)
    for name in names:
        for alternatives in packages[name].relations["provides"]:
            providers[alternatives[0]["name"]].append(number[name])

    source: list[int] = []
    target: list[int] = []
    facts: Counter[str] = Counter(packages=len(names))
    for name in names:
        for relation in RELATIONS:
            for alternatives in packages[name].relations[relation]:
                for alternative in alternatives:
                    wanted = alternative["name"]
                    if wanted in number:
                        found, kind = [number[wanted]], "relations"
                    else:
                        found = providers.get(wanted, [])
                        kind = "virtual_relations" if found else "dangling_relations"
                    facts[kind] += 1
                    source += [number[name]] * len(found)
                    target += found

    return Related({name: packages[name] for name in names}, source, target, facts)


def _lines(stream: IO[bytes], place: str) -> Iterator[bytes]:
    """Yield the lines of lists, which may be compressed, up to `most_expanded` bytes.

    :raises SpecError: They are more, or a line has more than `LONGEST_LINE`.
    """
    most = left = most_expanded()
    while line := stream.readline(LONGEST_LINE):
        left -= len(line)
        if left < 0:
            raise SpecError(
                f"{place}: the lists expand to more than {most >> 20} MiB; set"
                " TESTBED_EXPAND_MIB to allow more"
            )
        if len(line) == LONGEST_LINE:
            raise SpecError(
                f"{place}: the lists are broken: a line has {LONGEST_LINE} bytes or more"
            )
        yield line


def _newest(paragraphs: Iterable[Any]) -> Mapping[str, Any]:
    newest: dict[str, Any] = {}
    for paragraph in paragraphs:
        name = paragraph["Package"]
        known = newest.get(name)
        if known is None or Version(known["Version"]) < Version(paragraph["Version"]):
            newest[name] = paragraph
    return newest
