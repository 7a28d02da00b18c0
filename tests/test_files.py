"""Files named by a user must be regular, and not too large; what must last is whole or absent."""

import os
import resource
import socket
from pathlib import Path

import pytest

from testbed.cli.options import write_text
from testbed.core.errors import SpecError, StorageError
from testbed.core.files import read_object, read_regular, sync_tree, write_whole


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


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def noted_rename(source: Path, target: Path) -> None:
        done.append(f"rename {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_rename)
    write_whole(tmp_path / "a", "text")
    assert done == ["sync .a.partial", "rename a", f"sync {tmp_path.name}"]
    done.clear()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("nowhere")
    (tmp_path / "folder" / "b").touch()
    sync_tree(tmp_path)
    assert sorted(done[:2]) == ["sync a", f"sync {tmp_path.name}"]
    assert done[2:] == ["sync b", "sync folder"]


def test_what_replaces_a_file_is_like_it(tmp_path: Path) -> None:
    (place := tmp_path / "a").write_text("old")
    place.chmod(0o604)
    (link := tmp_path / "link").symlink_to("a")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert place.read_text() == "new"
    assert place.stat().st_mode & 0o777 == 0o604
    write_whole(Path(os.devnull), "nothing")
    assert Path(os.devnull).is_char_device()


def test_a_file_that_does_not_fit_leaves_the_one_from_before(tmp_path: Path) -> None:
    (place := tmp_path / "a").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, hard))
    try:
        for name in ("a", "b"):
            with pytest.raises(StorageError, match=r"--out .*: cannot be written: File too large"):
                write_text("x" * 4096, tmp_path / name, "--out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a", "old")]
    assert place.read_text() == "old"


@pytest.mark.parametrize(
    "content", [b"", bytes(9), b"{", b"[]", b"[" * 100_000, b"\xff{}", b"1" * 9999]
)
def test_what_is_no_object_is_one_line(tmp_path: Path, content: bytes) -> None:
    (place := tmp_path / "a.json").write_bytes(content)
    with pytest.raises(SpecError, match=r"a\.json: cannot be read: ") as caught:
        read_object(place, 1 << 20)
    assert "\n" not in str(caught.value)
