"""libbpf's C interface through ctypes, fully typed, with its errors as exceptions.

Only the functions that the testbed uses are declared, with the types of ``bpf/libbpf.h`` and
``bpf/bpf.h`` (libbpf 1.0 and later: functions return a negative errno, or NULL with errno set).
"""

import ctypes
import ctypes.util
import errno
import os
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache

from testbed.core.errors import KernelError

__all__ = [
    "LinkCreateOpts",
    "MapCreateOpts",
    "ObjectOpenOpts",
    "TcHook",
    "TcOpts",
    "TestRunOpts",
    "check",
    "explain",
    "libbpf",
]


class ObjectOpenOpts(ctypes.Structure):
    """``struct bpf_object_open_opts``, as of libbpf 1.0."""

    _fields_ = [
        ("sz", c_size_t),
        ("object_name", c_char_p),
        ("relaxed_maps", c_bool),
        ("pin_root_path", c_char_p),
        ("unused_attach_prog_fd", c_uint32),
        ("kconfig", c_char_p),
        ("btf_custom_path", c_char_p),
        ("kernel_log_buf", c_void_p),
        ("kernel_log_size", c_size_t),
        ("kernel_log_level", c_uint32),
    ]


class TestRunOpts(ctypes.Structure):
    """``struct bpf_test_run_opts``, as of libbpf 1.0."""

    __test__ = False

    _fields_ = [
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    ]


class LinkCreateOpts(ctypes.Structure):
    """The head of ``struct bpf_link_create_opts``: what links of XDP and tcx need."""

    _fields_ = [
        ("sz", c_size_t),
        ("flags", c_uint32),
        ("iter_info", c_void_p),
        ("iter_info_len", c_uint32),
    ]


class MapCreateOpts(ctypes.Structure):
    """The head of ``struct bpf_map_create_opts``."""

    _fields_ = [
        ("sz", c_size_t),
        ("btf_fd", c_uint32),
        ("btf_key_type_id", c_uint32),
        ("btf_value_type_id", c_uint32),
        ("btf_vmlinux_value_type_id", c_uint32),
        ("inner_map_fd", c_uint32),
        ("map_flags", c_uint32),
    ]


class TcHook(ctypes.Structure):
    """``struct bpf_tc_hook``."""

    _fields_ = [("sz", c_size_t), ("ifindex", c_int), ("attach_point", c_int), ("parent", c_uint32)]


class TcOpts(ctypes.Structure):
    """``struct bpf_tc_opts``."""

    _fields_ = [
        ("sz", c_size_t),
        ("prog_fd", c_int),
        ("flags", c_uint32),
        ("prog_id", c_uint32),
        ("handle", c_uint32),
        ("priority", c_uint32),
    ]


_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)

_PROTOTYPES: dict[str, tuple[object, Sequence[object]]] = {
    "bpf_object__open_file": (c_void_p, [c_char_p, POINTER(ObjectOpenOpts)]),
    "bpf_object__load": (c_int, [c_void_p]),
    "bpf_object__close": (None, [c_void_p]),
    "bpf_object__next_map": (c_void_p, [c_void_p, c_void_p]),
    "bpf_object__next_program": (c_void_p, [c_void_p, c_void_p]),
    "bpf_map__name": (c_char_p, [c_void_p]),
    "bpf_map__fd": (c_int, [c_void_p]),
    "bpf_map__type": (c_int, [c_void_p]),
    "bpf_map__map_flags": (c_uint32, [c_void_p]),
    "bpf_map__key_size": (c_uint32, [c_void_p]),
    "bpf_map__value_size": (c_uint32, [c_void_p]),
    "bpf_map__set_value_size": (c_int, [c_void_p, c_uint32]),
    "bpf_map__max_entries": (c_uint32, [c_void_p]),
    "bpf_map__set_max_entries": (c_int, [c_void_p, c_uint32]),
    "bpf_map__initial_value": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "bpf_map__reuse_fd": (c_int, [c_void_p, c_int]),
    "bpf_program__name": (c_char_p, [c_void_p]),
    "bpf_program__section_name": (c_char_p, [c_void_p]),
    "bpf_program__type": (c_int, [c_void_p]),
    "bpf_program__fd": (c_int, [c_void_p]),
    "bpf_program__set_autoload": (c_int, [c_void_p, c_bool]),
    "bpf_map_create": (
        c_int,
        [c_int, c_char_p, c_uint32, c_uint32, c_uint32, POINTER(MapCreateOpts)],
    ),
    "bpf_map_get_fd_by_id": (c_int, [c_uint32]),
    "bpf_prog_get_fd_by_id": (c_int, [c_uint32]),
    "bpf_map_lookup_elem": (c_int, [c_int, c_void_p, c_void_p]),
    "bpf_map_update_elem": (c_int, [c_int, c_void_p, c_void_p, ctypes.c_uint64]),
    "bpf_map_delete_elem": (c_int, [c_int, c_void_p]),
    "bpf_map_get_next_key": (c_int, [c_int, c_void_p, c_void_p]),
    "bpf_prog_test_run_opts": (c_int, [c_int, POINTER(TestRunOpts)]),
    "bpf_link_create": (c_int, [c_int, c_int, c_int, POINTER(LinkCreateOpts)]),
    "bpf_link_update": (c_int, [c_int, c_int, c_void_p]),
    "bpf_link_get_next_id": (c_int, [c_uint32, POINTER(c_uint32)]),
    "bpf_link_get_fd_by_id": (c_int, [c_uint32]),
    "bpf_obj_get_info_by_fd": (c_int, [c_int, c_void_p, POINTER(c_uint32)]),
    "bpf_tc_hook_create": (c_int, [POINTER(TcHook)]),
    "bpf_tc_hook_destroy": (c_int, [POINTER(TcHook)]),
    "bpf_tc_attach": (c_int, [POINTER(TcHook), POINTER(TcOpts)]),
    "bpf_tc_detach": (c_int, [POINTER(TcHook), POINTER(TcOpts)]),
    "bpf_enable_stats": (c_int, [c_int]),
    "bpf_raw_tracepoint_open": (c_int, [c_char_p, c_int]),
    "libbpf_num_possible_cpus": (c_int, []),
    "libbpf_set_print": (c_void_p, [c_void_p]),
}


@cache
def libbpf() -> ctypes.CDLL:
    """The library, with every prototype declared.

    :raises KernelError: the library is not installed or lacks a function.
    """
    name = ctypes.util.find_library("bpf") or "libbpf.so.1"
    try:
        library = ctypes.CDLL(name, use_errno=True)
        for function, (result, arguments) in _PROTOTYPES.items():
            getattr(library, function).restype = result
            getattr(library, function).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise KernelError(f"libbpf 1.0 or later is needed: {error}; run `make setup`") from error
    # What libbpf would print is in the exception's text (the log buffer of ObjectOpenOpts) or in
    # errno.
    library.libbpf_set_print(None)
    return library


def explain(code: int) -> str:
    """An errno with its symbolic name: ``EPERM (Operation not permitted)``."""
    return f"{errno.errorcode.get(code, code)} ({os.strerror(code)})"


def check(result: int, what: str, log: "ctypes.Array[c_char] | None" = None) -> int:
    """Return a result, or raise the error that it stands for.

    :param result: What libbpf returned; negative is an errno.
    :param what: The start of the message, such as ``load ring``.
    :param log: The verifier's log, put into the exception's text.
    :raises KernelError: with errno's name and the log's last 200 lines.
    """
    if result >= 0:
        return result
    text = f"{what}: {explain(-result)}"
    lines = log.value.decode(errors="replace").strip().splitlines() if log is not None else []
    if lines:
        text += "\nverifier log (last lines):\n" + "\n".join(lines[-200:])
    raise KernelError(text)
