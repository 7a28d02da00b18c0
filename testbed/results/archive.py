"""A run in one file, to be repeated elsewhere: scenario, seed, versions and machine
(``manifest.json``), the fabric's plan, and the results as parquet and CSV.

An archive may come from anywhere. Nothing in it is written to disk or executed: files are read by
name into memory, up to a size. `tarfile` would read the headers that precede members (long names,
pax) whatever their size, so archives are read block by block here.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from testbed.core.errors import SpecError
from testbed.core.files import check_regular, parse_object, replacing
from testbed.core.parquet import read_frame
from testbed.results.manifest import SCHEMA
from testbed.results.table import COLUMNS, Run, load_run

__all__ = ["Archive", "read_archive", "write_archive"]

_LARGEST: Final = {
    "manifest.json": 16 << 20,
    "plan.json": 16 << 20,
    "results.parquet": 64 << 20,
    "results.csv": 2 << 30,
    "faults.parquet": 1 << 30,
    "stacks.parquet": 1 << 30,
}
"""The files of an archive, and their maximum sizes in bytes."""

_NEEDED: Final = ("manifest.json", "plan.json", "results.parquet")
"""Those that are read; others are passed over."""

_DECODER: Final = 128 << 20  # bytes of the decompressor's window; xz -9 needs 65 MiB
_CHUNK: Final = 1 << 20
_MOST_HEADERS: Final = 32  # of members, and before them
_LONGEST_HEADER: Final = 1 << 16  # bytes of a header that precedes a member
_HARMLESS: Final = re.compile(rb"(?:[0-9]+ (?:[acm]time|[ug]id|[ug]name|comment)=[^\n]*\n)*")
"""Pax records that leave a member's name, size and kind as they are."""


@dataclass(frozen=True)
class Archive:
    """What an archive has.

    :param plan: The fabric's plan.
    :param run: Manifest and measurements; its path is the archive's.
    """

    run: Run
    plan: Mapping[str, Any]


def write_archive(path: Path, plan: Mapping[str, Any], out: Path) -> Run:
    """Archive the folder of a finished run.

    The same run gives the same bytes: times and owners are left out.

    :param plan: The plan of its fabric.
    :raises SpecError: It is not such a folder.
    :raises OSError: The archive cannot be written; then there is none, or the one from before.
    """
    run = load_run(path)
    content = {
        "manifest.json": (path / "manifest.json").read_bytes(),
        "plan.json": json.dumps(plan, indent=1).encode(),
        "results.parquet": (path / "results.parquet").read_bytes(),
        "results.csv": run.frame.to_csv(index=False).encode(),
    }
    for name in ("faults.parquet", "stacks.parquet"):
        if (path / name).exists():
            content[name] = (path / name).read_bytes()
    for name, data in content.items():
        if len(data) > _LARGEST[name]:
            raise SpecError(f"{path / name}: must have at most {_LARGEST[name] >> 20} MiB")
    with replacing(out) as partial, tarfile.open(partial, "w:xz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return run


def read_archive(path: Path) -> Archive:
    """Read an archive.

    :raises SpecError: It is none, or has something else in it.
    """
    check_regular(path)
    content: dict[str, bytes] = {}
    try:
        with path.open("rb") as file:
            for name, data in _members(_Expanded(file)):
                if name in content:
                    raise ValueError(f"it has {name!r} twice")
                content[name] = data
    except (tarfile.TarError, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise SpecError(f"{path}: is not an archive of a run: {error}") from error
    for name in _NEEDED:
        if name not in content:
            raise SpecError(f"{path}: is not an archive of a run: {name} is missing")
    manifest, plan = (
        parse_object(content[name], f"{path}: {name}") for name in ("manifest.json", "plan.json")
    )
    if manifest.get("schema") != SCHEMA or not isinstance(manifest.get("scenario"), dict):
        raise SpecError(f"{path}: its manifest is not that of a run")
    frame = read_frame(content["results.parquet"], f"{path}: results.parquet", COLUMNS)
    return Archive(Run(path, manifest, frame), plan)


class _Expanded:
    """What an xz file expands to, as far as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DECODER)

    def take(self, size: int) -> bytes:
        """Return the next bytes.

        :raises EOFError: The file ends before them.
        """
        parts = []
        while size:
            parts.append(self._some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def end(self) -> None:
        """Check that padding follows, and the right checksum.

        :raises EOFError: The file ends before it.
        :raises ValueError: Something else follows.
        """
        left = _CHUNK
        while not self._decoder.eof:
            padding = self._some(_CHUNK)
            left -= len(padding)
            if padding.strip(b"\0") or left < 0:
                raise ValueError("it goes on behind its end")

    def _some(self, most: int) -> bytes:
        data = b""
        if self._decoder.eof or (
            self._decoder.needs_input and not (data := self._file.read(_CHUNK))
        ):
            raise EOFError("it ends early")
        return self._decoder.decompress(data, most)


def _members(file: _Expanded) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of an archive's files; those that are not needed are empty.

    :raises ValueError: It has something else, or a file is too large.
    """
    for _ in range(_MOST_HEADERS):
        block = file.take(tarfile.BLOCKSIZE)
        if not block.strip(b"\0"):
            return file.end()
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        blocks = -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        small = 0 <= member.size <= _LONGEST_HEADER
        if (
            member.type == tarfile.XHDTYPE
            and small
            and _HARMLESS.fullmatch(file.take(blocks).rstrip(b"\0"))
        ):
            continue
        most = _LARGEST.get(member.name)
        if most is None or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise ValueError(f"it has {member.name!r}")
        if not 0 <= member.size <= most:
            raise ValueError(f"{member.name} must have at most {most >> 20} MiB")
        if member.name in _NEEDED:
            yield member.name, file.take(blocks)[: member.size]
            continue
        for first in range(0, blocks, _CHUNK):
            file.take(min(_CHUNK, blocks - first))
        yield member.name, b""
    raise ValueError(f"it has more than {_MOST_HEADERS} members")
