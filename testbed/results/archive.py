"""A run in one file, to be repeated elsewhere: scenario, seed, versions and machine
(``manifest.json``), the fabric's plan, and the results as parquet and CSV.

An archive may come from anywhere. Nothing in it is written to disk or executed: files are read by
name into memory, up to a size.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from testbed.core.errors import SpecError
from testbed.core.files import check_regular
from testbed.results.folder import SCHEMA
from testbed.results.table import COLUMNS, Run, load_run

__all__ = ["Archive", "read_archive", "write_archive"]

_LARGEST: Final = {
    "manifest.json": 16 << 20,
    "plan.json": 16 << 20,
    "results.parquet": 1 << 30,
    "results.csv": 2 << 30,
    "faults.parquet": 1 << 30,
    "stacks.parquet": 1 << 30,
}
"""The files of an archive, and their maximum sizes in bytes."""


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
    with tarfile.open(out, "w:xz", format=tarfile.PAX_FORMAT) as archive:
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
        # As a stream, so that no member is looked for or read twice.
        with tarfile.open(path, "r|xz") as archive:
            for member in archive:
                most = _LARGEST.get(member.name)
                if most is None or not member.isreg() or member.name in content:
                    raise SpecError(f"{path}: is not an archive of a run: it has {member.name!r}")
                if member.size > most:
                    raise SpecError(f"{path}: {member.name} must have at most {most >> 20} MiB")
                file = archive.extractfile(member)
                keep = member.name in ("manifest.json", "plan.json", "results.parquet")
                content[member.name] = file.read() if file and keep else b""
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise SpecError(f"{path}: is not an archive of a run: {error}") from error
    for name in ("manifest.json", "plan.json", "results.parquet"):
        if name not in content:
            raise SpecError(f"{path}: is not an archive of a run: {name} is missing")
    manifest, plan = (_object(path, name, content[name]) for name in ("manifest.json", "plan.json"))
    if manifest.get("schema") != SCHEMA or not isinstance(manifest.get("scenario"), dict):
        raise SpecError(f"{path}: its manifest is not that of a run")
    try:
        frame = pd.read_parquet(io.BytesIO(content["results.parquet"]))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: results.parquet cannot be read: {error}") from error
    if missing := [column for column in COLUMNS if column not in frame]:
        raise SpecError(f"{path}: its results lack the columns {', '.join(missing)}")
    return Archive(Run(path, manifest, frame), plan)


def _object(path: Path, name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: {name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(f"{path}: {name} is not a JSON object")
    return value
