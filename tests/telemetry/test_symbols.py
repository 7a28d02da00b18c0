"""Names of addresses."""

import ctypes
import os

from testbed.native import load
from testbed.telemetry.symbols import KernelSymbols, ProcessSymbols

KALLSYMS = """\
ffffffff81000000 T _stext
ffffffff81000100 t tcp_ack
ffffffff81000200 d some_data
ffffffff81000300 T ip_rcv
ffffffffc0001000 t bpf_prog_0123456789abcdef_ring_rx\t[bpf]
ffffffffc0002000 t bpf_prog_fedcba9876543210\t[bpf]
"""


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def test_kernel_functions_and_programs(tmp_path):
    path = tmp_path / "kallsyms"
    path.write_text(KALLSYMS)
    symbols = KernelSymbols(path)
    assert symbols.name(0xFFFFFFFF81000250) == "tcp_ack"
    assert symbols.name(0xFFFFFFFF81000300) == "ip_rcv"
    assert symbols.name(0xFFFFFFFFC0001010) == "bpf_prog_0123456789abcdef_ring_rx"
    assert symbols.name(0) == "?"
    assert symbols.program("0123456789abcdef") == "ring_rx"
    assert symbols.program("fedcba9876543210") == "fedcba9876543210"


def test_a_program_that_takes_anothers_place_is_found_after_a_refresh(tmp_path):
    path = tmp_path / "kallsyms"
    path.write_text(KALLSYMS)
    symbols = KernelSymbols(path)
    assert symbols.name(0xFFFFFFFFC0001010).endswith("_ring_rx")
    path.write_text(KALLSYMS.replace("ring_rx", "pinch_rx"))
    symbols.refresh()
    assert symbols.name(0xFFFFFFFFC0001010).endswith("_pinch_rx")


def test_functions_of_this_process():
    symbols = ProcessSymbols(os.getpid())
    library = load("lanes")
    assert symbols.name(address_of(library.quantize) + 1).endswith("!quantize")
    assert symbols.name(address_of(ctypes.CDLL(None).getppid)) == "libc.so.6!getppid"
    assert symbols.name(1) == "?"


def test_a_library_that_is_loaded_later_is_found():
    symbols = ProcessSymbols(os.getpid())
    library = load("barrier")
    assert symbols.name(address_of(library.barrier_wait)).endswith("!barrier_wait")


def test_a_process_that_has_ended_has_no_names():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert ProcessSymbols(child).name(4096) == "?"
