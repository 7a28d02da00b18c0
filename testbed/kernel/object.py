"""A compiled BPF object: opening it, setting sizes and constants, loading it, and access to its
maps and programs by name.
"""

import ctypes
import errno
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, SupportsBytes

import numpy as np

from testbed.core.closing import Closing
from testbed.core.errors import KernelError
from testbed.core.logs import logger_of, timed
from testbed.kernel.btf import Btf
from testbed.kernel.chained import Chained
from testbed.kernel.compile import compile_bpf
from testbed.kernel.elf import Elf, Symbol
from testbed.kernel.libbpf import ObjectOpenOpts, check, libbpf, said
from testbed.kernel.maps import Map
from testbed.kernel.program import Program

__all__ = ["BpfObject", "Entry", "programs_of", "variables"]

logger = logger_of(__name__)

_SCHED_CLS = 3  # enum bpf_prog_type
_LOG_SIZE = 1 << 24  # the verifier's log of a rejected program with long loops


class Entry(NamedTuple):
    """A program of an object.

    :param section: Its section.
    :param kind: ``enum bpf_prog_type``; 0: libbpf does not know the section.
    :param place: ``enum bpf_attach_type``.
    """

    section: str
    kind: int
    place: int


def programs_of(path: Path) -> dict[str, Entry]:
    """The programs of a compiled object, by their functions' names; nothing is loaded.

    :raises KernelError: libbpf cannot read the object, or does not know a section.
    """
    lib = libbpf()
    handle = _opened(path, ObjectOpenOpts(sz=ctypes.sizeof(ObjectOpenOpts)))
    try:
        found: dict[str, Entry] = {}
        program: int | None = None
        while program := lib.bpf_object__next_program(handle, program):
            kind, place = (
                lib.bpf_program__type(program),
                lib.bpf_program__expected_attach_type(program),
            )
            section = lib.bpf_program__section_name(program).decode()
            name = lib.bpf_program__name(program).decode()
            if not kind:  # it could not be loaded, with EINVAL only
                raise KernelError(
                    f"{path.name}: {name}: libbpf knows no section {section!r}; several programs"
                    " may share a section, such as tc"
                )
            found[name] = Entry(section, kind, place)
        return found
    finally:
        lib.bpf_object__close(handle)


def _opened(path: Path, options: ObjectOpenOpts) -> int:
    said()  # what was said before is not about this object
    handle: int | None = libbpf().bpf_object__open_file(str(path).encode(), ctypes.byref(options))
    if handle is None:
        check(-(ctypes.get_errno() or errno.EINVAL), f"libbpf cannot open {path.name}")
    assert handle is not None
    return handle


def variables(path: Path) -> list[Symbol]:
    """The global variables of a compiled object, constants included."""
    prefixes = (".bss", ".data", ".rodata")
    return [
        each for each in Elf(path.read_bytes()).variables() if each.section.startswith(prefixes)
    ]


class BpfObject(Closing):
    """``bpf/<name>.bpf.c``, loaded; or another compiled object.

    :param name: The program's file name without ``.bpf.c``; or the path of an object.
    :param rodata: The object's ``const volatile`` constants in the order of the C source, for
        example as one `Struct`. The verifier knows their values, so loops over them are bounded and
        dead branches are removed.
    :param constants: Values of constants and other initialized variables, by name.
    :param programs: Names of the programs to load; all, if not given. The verifier takes its time
        for each.
    :param max_entries: Sizes of maps that differ from those in the source.
    :param value_sizes: The same for the size of values, bytes.
    :param reuse: Maps of other objects to use instead of new ones, by name.
    :param chained: Which of its XDP programs hands on frames to others.
    :param classifier: Which of its TC programs is loaded as one, and not as an action, which is the
        same but that only classifiers are attached to devices.
    :raises KernelError: with the message of clang, libbpf or the verifier.
    """

    def __init__(
        self,
        name: str | Path,
        rodata: SupportsBytes | None = None,
        max_entries: Mapping[str, int] | None = None,
        value_sizes: Mapping[str, int] | None = None,
        reuse: Mapping[str, Map] | None = None,
        constants: Mapping[str, Any] | None = None,
        programs: Collection[str] | None = None,
        chained: Chained | None = None,
        classifier: str | None = None,
    ) -> None:
        self._path = path = name if isinstance(name, Path) else compile_bpf(name)
        self.name = name = path.name.removesuffix(".bpf.o")
        self._handle: int | None = None
        lib = libbpf()
        log = ctypes.create_string_buffer(_LOG_SIZE)
        options = ObjectOpenOpts(
            sz=ctypes.sizeof(ObjectOpenOpts),
            object_name=name.encode(),
            kernel_log_buf=ctypes.addressof(log),
            kernel_log_size=_LOG_SIZE,
        )
        with chained.loading() if chained else nullcontext():
            self._handle = _opened(path, options)
            try:
                maps = self._handles(lib.bpf_object__next_map, lib.bpf_map__name)
                self._size(maps, max_entries or {}, lib.bpf_map__set_max_entries, "max_entries")
                self._size(maps, value_sizes or {}, lib.bpf_map__set_value_size, "value_size")
                for key, other in (reuse or {}).items():
                    check(
                        lib.bpf_map__reuse_fd(self._find(maps, key), other.fd),
                        f"reuse map {key} in {name}",
                    )
                if rodata is not None:
                    self._constants(maps, bytes(rodata))
                for key, value in (constants or {}).items():
                    self._initialize(maps, key, value)
                handles = self._handles(lib.bpf_object__next_program, lib.bpf_program__name)
                wanted = {key: self._find(handles, key, "program") for key in programs or handles}
                for key in handles.keys() - wanted.keys():
                    lib.bpf_program__set_autoload(handles[key], False)
                if chained:
                    chained.opened(self._handle)
                if classifier:
                    lib.bpf_program__set_type(wanted[classifier], _SCHED_CLS)
                if only := chained.program if chained else classifier:
                    lib.bpf_program__set_autoload(wanted[only], True)  # SEC("?...") says no
                #: Where maps are pinned, and which of these were there before.
                self.pins = self._pin_paths(maps)
                self.found_pins = [path for path in self.pins if path.exists()]
                with timed(logger, logging.DEBUG, "loaded %s", path):
                    check(lib.bpf_object__load(self._handle), f"load {name}", log)
                self.maps = {key: self._map(key, handle) for key, handle in maps.items()}
                self.programs = {
                    key: Program(key, lib.bpf_program__fd(handle)) for key, handle in wanted.items()
                }
            except BaseException:
                self.close()
                raise

    @cached_property
    def btf(self) -> Btf:
        """Types of this object, such as those of its maps' elements."""
        return Btf.of(self._path)

    def dtype(self, name: str) -> np.dtype[Any]:
        """The layout of ``struct <name>``; see `Btf.dtype`."""
        return self.btf.dtype(name)

    def close(self) -> None:
        """Release programs and maps; what a link or a view still holds stays alive until that is
        released.
        """
        if self._handle is not None:
            libbpf().bpf_object__close(self._handle)
            self._handle = None

    def _handles(
        self, following: "ctypes._NamedFuncPointer", named: "ctypes._NamedFuncPointer"
    ) -> dict[str, int]:
        handles: dict[str, int] = {}
        handle: int | None = None
        while handle := following(self._handle, handle):
            # libbpf names the maps of sections after the object: `ring.rodata`.
            name = named(handle).decode()
            handles[name[name.index(".") :] if "." in name else name] = handle
        return handles

    @staticmethod
    def _pin_paths(maps: Mapping[str, int]) -> list[Path]:
        found = (libbpf().bpf_map__pin_path(handle) for handle in maps.values())
        return [Path(os.fsdecode(path)) for path in found if path]

    def _find(self, handles: Mapping[str, int], key: str, what: str = "map") -> int:
        if key not in handles:
            known = ", ".join(sorted(handles))
            raise KernelError(f"{self.name} has no {what} {key!r}: it has {known}")
        return handles[key]

    def _size(
        self,
        maps: Mapping[str, int],
        sizes: Mapping[str, int],
        setter: "ctypes._NamedFuncPointer",
        what: str,
    ) -> None:
        for key, value in sizes.items():
            check(
                setter(self._find(maps, key), value),
                f"set {what} of map {key} in {self.name} to {value}",
            )

    def _constants(self, maps: Mapping[str, int], data: bytes) -> None:
        size = ctypes.c_size_t()
        memory = libbpf().bpf_map__initial_value(self._find(maps, ".rodata"), ctypes.byref(size))
        # The section may be padded at its end, and may have format strings after the constants.
        if not memory or size.value < len(data):
            raise KernelError(f"{self.name} has {size.value} bytes of constants, not {len(data)}")
        ctypes.memmove(memory, data, len(data))

    def _initialize(self, maps: Mapping[str, int], key: str, value: Any) -> None:
        found = next((each for each in variables(self._path) if each.name == key), None)
        if found is None:
            known = ", ".join(each.name for each in variables(self._path)) or "none"
            raise KernelError(f"{self.name} has no variable {key!r}: it has {known}")
        try:
            data = np.asarray(value, self.btf.variable(key)).tobytes()
        except (TypeError, ValueError, OverflowError) as error:
            kind = self.btf.variable(key)
            why = str(error)
            if kind.kind in "iu":
                why = f"must be {np.iinfo(kind).min} to {np.iinfo(kind).max}"
            raise KernelError(f"{self.name}: variable {key} = {value!r}: {why}") from None
        size = ctypes.c_size_t()
        section = self._find(maps, found.section)
        memory = libbpf().bpf_map__initial_value(section, ctypes.byref(size))
        if not memory or len(data) != found.size or found.offset + found.size > size.value:
            raise KernelError(
                f"{self.name}: variable {key} has {found.size} bytes, not {len(data)}"
            )
        ctypes.memmove(memory + found.offset, data, len(data))

    @staticmethod
    def _map(key: str, handle: int) -> Map:
        lib = libbpf()
        return Map(
            key,
            lib.bpf_map__fd(handle),
            lib.bpf_map__type(handle),
            lib.bpf_map__map_flags(handle),
            lib.bpf_map__key_size(handle),
            lib.bpf_map__value_size(handle),
            lib.bpf_map__max_entries(handle),
        )
