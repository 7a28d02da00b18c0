"""libbpf's C interface through ctypes, fully typed, with its errors as exceptions.

Only the functions that the testbed uses are declared, with the types of ``bpf/libbpf.h`` and
``bpf/bpf.h`` (libbpf 1.0 and later: functions return a negative errno, or NULL with errno set).
"""

import ctypes
import ctypes.util
import errno
import logging
import os
import threading
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache

from testbed.core.errors import KernelError
from testbed.core.logs import logger_of

__all__ = [
    "ENOTSUPP",
    "PREPARE_LOAD",
    "LinkCreateOpts",
    "MapCreateOpts",
    "ObjectOpenOpts",
    "ProgHandlerOpts",
    "ProgLoadOpts",
    "TcHook",
    "TcOpts",
    "TestRunOpts",
    "check",
    "explain",
    "libbpf",
    "said",
]

logger = logger_of(__name__)

_OWN_CODES = 4000  # enum libbpf_errno
ENOTSUPP = 524  # linux/errno.h: not for user space, but returned for maps that cannot be walked


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


class ProgLoadOpts(ctypes.Structure):
    """The head of ``struct bpf_prog_load_opts``."""

    _fields_ = [
        ("sz", c_size_t),
        ("attempts", c_int),
        ("expected_attach_type", c_int),
        ("prog_btf_fd", c_uint32),
        ("prog_flags", c_uint32),
        ("unused", c_uint32 * 5),
        ("fd_array", c_void_p),
        ("func_info", c_void_p),
        ("func_info_cnt", c_uint32),
        ("func_info_rec_size", c_uint32),
        ("line_info", c_void_p),
        ("line_info_cnt", c_uint32),
        ("line_info_rec_size", c_uint32),
    ]


PREPARE_LOAD = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(ProgLoadOpts), ctypes.c_long)
"""``libbpf_prog_prepare_load_fn_t``"""


class ProgHandlerOpts(ctypes.Structure):
    """``struct libbpf_prog_handler_opts``."""

    _fields_ = [
        ("sz", c_size_t),
        ("cookie", ctypes.c_long),
        ("prog_setup_fn", c_void_p),
        ("prog_prepare_load_fn", PREPARE_LOAD),
        ("prog_attach_fn", c_void_p),
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
_WARNING = 0  # enum libbpf_print_level


class _Said(threading.local):
    """The warnings of libbpf in this thread, since the last result that was checked."""

    def __init__(self) -> None:
        self.lines: list[str] = []


_SAID = _Said()
_LIBC = ctypes.CDLL(None)


def _listen(level: int, form: bytes, arguments: int) -> int:
    if level != _WARNING and not logger.isEnabledFor(logging.DEBUG):
        return 0
    text = ctypes.create_string_buffer(1024)
    # A va_list is passed as an address on all 64-bit machines that Linux has XDP on.
    _LIBC.vsnprintf(text, c_size_t(len(text)), form, c_void_p(arguments))
    line = text.value.decode(errors="replace").strip()
    if level == _WARNING:
        _SAID.lines.append(line)
    logger.debug("%s", line)
    return 0


_LISTEN = _PRINT(_listen)


def said() -> str:
    """Return libbpf's warnings since the last result that was checked, a line each."""
    lines, _SAID.lines = _SAID.lines, []
    return "".join(f"\n{line}" for line in lines)


_PROTOTYPES: dict[str, tuple[object, Sequence[object]]] = {
    "bpf_object__open_file": (c_void_p, [c_char_p, POINTER(ObjectOpenOpts)]),
    "bpf_object__load": (c_int, [c_void_p]),
    "bpf_object__close": (None, [c_void_p]),
    "bpf_object__btf": (c_void_p, [c_void_p]),
    "btf__find_by_name_kind": (c_int, [c_void_p, c_char_p, c_uint32]),
    "btf__type_by_id": (POINTER(c_uint32), [c_void_p, c_uint32]),
    "btf__add_func": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "libbpf_bpf_map_type_str": (c_char_p, [c_int]),
    "libbpf_strerror": (c_int, [c_int, c_char_p, c_size_t]),
    "libbpf_prog_type_by_name": (c_int, [c_char_p, POINTER(c_int), POINTER(c_int)]),
    "libbpf_register_prog_handler": (c_int, [c_char_p, c_int, c_int, POINTER(ProgHandlerOpts)]),
    "libbpf_unregister_prog_handler": (c_int, [c_int]),
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
    "bpf_map__pin_path": (c_char_p, [c_void_p]),
    "bpf_program__name": (c_char_p, [c_void_p]),
    "bpf_program__section_name": (c_char_p, [c_void_p]),
    "bpf_program__type": (c_int, [c_void_p]),
    "bpf_program__expected_attach_type": (c_int, [c_void_p]),
    "bpf_program__set_type": (c_int, [c_void_p, c_int]),
    "bpf_program__insns": (c_void_p, [c_void_p]),
    "bpf_program__insn_cnt": (c_size_t, [c_void_p]),
    "bpf_program__set_insns": (c_int, [c_void_p, c_void_p, c_size_t]),
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
    library.libbpf_set_print(_LISTEN)  # not on stderr: it is in the texts of exceptions
    return library


def explain(code: int) -> str:
    """An errno with its symbolic name: ``EPERM (Operation not permitted)``."""
    if code == ENOTSUPP:
        return "ENOTSUPP (Operation is not supported)"
    if code >= _OWN_CODES:
        text = ctypes.create_string_buffer(128)
        libbpf().libbpf_strerror(code, text, len(text))
        return text.value.decode()
    return f"{errno.errorcode.get(code, code)} ({os.strerror(code)})"


def check(result: int, what: str, log: "ctypes.Array[c_char] | None" = None) -> int:
    """Return a result, or raise the error that it stands for.

    :param result: What libbpf returned; negative is an errno.
    :param what: The start of the message, such as ``load ring``.
    :param log: The verifier's log, put into the exception's text.
    :raises KernelError: with errno's name, what libbpf said, and the log's last 200 lines.
    """
    reason = said()
    if result >= 0:
        return result
    text = f"{what}: {explain(-result)}{reason}"
    lines = log.value.decode(errors="replace").strip().splitlines() if log is not None else []
    if lines:
        text += "\nverifier log (last lines):\n" + "\n".join(lines[-200:])
    raise KernelError(text)
