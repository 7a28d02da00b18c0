"""Files named by a user must be regular, and not too large."""

import os
import socket
from pathlib import Path

import pytest

from testbed.core.errors import SpecError
from testbed.core.files import read_regular


def test_regular_files_and_links_to_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4) == b"1234"


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_fifo, "a FIFO"),
        (make_socket, "a socket"),
        (Path.mkdir, "a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "a character device"),
    ],
)
@pytest.mark.timeout(20)  # reading a FIFO without a writer would block
def test_other_kinds_are_named(tmp_path: Path, make, kind: str) -> None:
    make(tmp_path / "it")
    with pytest.raises(SpecError) as refused:
        read_regular(tmp_path / "it", 4)
    assert str(refused.value) == f"{tmp_path / 'it'}: is {kind}: must be a regular file"


def test_files_of_the_kernel_are_not_read() -> None:
    """They look like regular files, but some, such as kmsg, can be read only once."""
    assert read_regular(Path("/proc/version"), 4) == b""


def test_larger_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecError, match="holes: must have at most 64 KiB"):
        read_regular(tmp_path / "holes", 64 << 10)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="none: cannot be read: No such file or directory"):
        read_regular(tmp_path / "none", 4)
