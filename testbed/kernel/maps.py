"""BPF maps from Python: single elements through the syscall, mmapable arrays as numpy views without
copies.
"""

import ctypes
import errno
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from testbed.core.errors import KernelError
from testbed.kernel.libbpf import MapCreateOpts, check, libbpf

__all__ = ["BPF_F_MMAPABLE", "Map"]

BPF_F_MMAPABLE = 1 << 10  # linux/bpf.h
_PER_CPU = frozenset(
    {5, 6, 10, 21}
)  # BPF_MAP_TYPE_PERCPU_HASH, _ARRAY, LRU_PERCPU_HASH, PERCPU_CGROUP_STORAGE


def _information(fd: int) -> dict[str, int]:
    """The kernel's description of a map (``bpf_map_show_fdinfo`` in kernel/bpf/syscall.c)."""
    lines = (
        line.split(":")
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="utf-8").splitlines()
    )
    return {
        key: int(value, 0)
        for key, value in lines
        if key.startswith(("map_", "key_", "value_", "max_"))
    }


class Map:
    """One loaded map.

    :param name: Its name in the C source.
    :param fd: Its descriptor, owned by the object that it was loaded with.
    :param kind: ``enum bpf_map_type``.
    """

    def __init__(
        self,
        name: str,
        fd: int,
        kind: int,
        flags: int,
        key_size: int,
        value_size: int,
        max_entries: int,
    ) -> None:
        self.name = name
        self.fd = fd
        self.kind = kind
        self.flags = flags
        self.key_size = key_size
        self.value_size = value_size
        self.max_entries = max_entries
        # The kernel returns one value per possible CPU, each padded to 8 bytes.
        self.per_cpu = libbpf().libbpf_num_possible_cpus() if kind in _PER_CPU else 0
        self._memory: mmap.mmap | None = None

    @property
    def kind_name(self) -> str:
        """Its type, as in ``bpftool map``; a number, if libbpf does not know it."""
        known = libbpf().libbpf_bpf_map_type_str(self.kind)
        return known.decode() if known else str(self.kind)

    @property
    def stride(self) -> int:
        """Bytes from one array element to the next: the kernel pads values to 8 bytes."""
        return -(-self.value_size // 8) * 8

    def view(self, dtype: DTypeLike = np.uint64) -> NDArray[Any]:
        """The map's own memory as an array of shape ``(max_entries, stride / itemsize)``; the
        kernel sees writes immediately.

        :raises KernelError: the map was created without ``BPF_F_MMAPABLE``.
        """
        if not self.flags & BPF_F_MMAPABLE:
            raise KernelError(
                f"map {self.name} is not mmapable: add BPF_F_MMAPABLE to its map_flags"
            )
        size = self.stride * self.max_entries
        if self._memory is None:
            self._memory = mmap.mmap(self.fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        flat = np.frombuffer(self._memory, dtype=dtype, count=size // np.dtype(dtype).itemsize)
        return flat.reshape(self.max_entries, -1)

    def ring_buffer(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]:
        """A ring buffer's memory: the consumer's position, the producer's, and the data, mapped
        twice in a row.

        The kernel's layout (Documentation/bpf/ringbuf.rst): a page that the consumer writes, a page
        and the data that it reads.
        """
        page = mmap.PAGESIZE
        consumer = mmap.mmap(self.fd, page)
        rest = mmap.mmap(self.fd, page + 2 * self.max_entries, prot=mmap.PROT_READ, offset=page)
        positions = np.frombuffer(consumer, np.uint64, 1), np.frombuffer(rest, np.uint64, 1)
        return *positions, np.frombuffer(rest, np.uint8, offset=page)

    @classmethod
    def create(
        cls, name: str, kind: int, key_size: int, value_size: int, max_entries: int, flags: int = 0
    ) -> Self:
        """A map that belongs to no object, such as the inner map of a map of maps; the caller
        closes its descriptor.

        :raises KernelError: the kernel's errno.
        """
        options = MapCreateOpts(sz=ctypes.sizeof(MapCreateOpts), map_flags=flags)
        fd = libbpf().bpf_map_create(
            kind, name.encode(), key_size, value_size, max_entries, ctypes.byref(options)
        )
        return cls(
            name, check(fd, f"create map {name}"), kind, flags, key_size, value_size, max_entries
        )

    @classmethod
    def open(cls, number: int) -> Self:
        """A map that another process has loaded, found by its :attr:`number`; the caller closes the
        descriptor.

        :raises KernelError: the kernel's errno: there is no such map, or this is not root.
        """
        fd = check(libbpf().bpf_map_get_fd_by_id(number), f"open map {number}")
        info = _information(fd)
        sizes = info["key_size"], info["value_size"], info["max_entries"]
        return cls(f"number {number}", fd, info["map_type"], info["map_flags"], *sizes)

    @property
    def number(self) -> int:
        """The kernel's id of the map, the same for all processes."""
        return _information(self.fd)["map_id"]

    def lookup(self, key: bytes | int) -> bytes:
        """The value at a key; for per-CPU maps the values of all possible CPUs in sequence, each
        padded to 8 bytes.

        :raises KeyError: no such key.
        """
        value = ctypes.create_string_buffer(
            self.stride * self.per_cpu if self.per_cpu else self.value_size
        )
        result = libbpf().bpf_map_lookup_elem(self.fd, self._key(key), value)
        if result == -errno.ENOENT:
            raise KeyError(key)
        check(result, f"look up {key!r} in map {self.name}")
        return value.raw

    def update(self, key: bytes | int, value: bytes | int) -> None:
        """Set the value at a key."""
        data = value.to_bytes(self.value_size, "little") if isinstance(value, int) else bytes(value)
        if len(data) != self.value_size and not self.per_cpu:
            raise KernelError(
                f"map {self.name} takes values of {self.value_size} bytes, not {len(data)}"
            )
        check(
            libbpf().bpf_map_update_elem(self.fd, self._key(key), data, 0),
            f"update {key!r} in map {self.name}",
        )

    def delete(self, key: bytes | int) -> None:
        """Remove a key; a missing key is not an error."""
        result = libbpf().bpf_map_delete_elem(self.fd, self._key(key))
        if result != -errno.ENOENT:
            check(result, f"delete {key!r} from map {self.name}")

    def keys(self) -> Iterator[bytes]:
        """All keys, in the kernel's order."""
        previous: bytes | None = None
        following = ctypes.create_string_buffer(self.key_size)
        while (result := libbpf().bpf_map_get_next_key(self.fd, previous, following)) == 0:
            previous = following.raw
            yield previous
        if result != -errno.ENOENT:
            check(result, f"walk map {self.name}")

    def _key(self, key: bytes | int) -> bytes:
        return key.to_bytes(self.key_size, "little") if isinstance(key, int) else key
