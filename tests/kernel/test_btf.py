"""Layouts and numbers read from a compiled object's BTF, checked by the compiler through static
assertions in C.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import KernelError
from testbed.kernel import abi, compile_bpf
from testbed.kernel.btf import Btf
from testbed.kernel.compile import BPF, FLAGS
from testbed.native import FLAGS as NATIVE_FLAGS
from testbed.plan import MAX_HOSTS
from testbed.protocol.pinch import memory as pinch_memory
from testbed.protocol.ring import memory

CLANG = shutil.which("clang") or "clang"
INCLUDES = (
    f"-I{BPF}",
    f"-I{BPF / 'include'}",
    f"-I/usr/include/{sysconfig.get_config_var('MULTIARCH')}",
)
HEADERS = sorted(path.relative_to(BPF).as_posix() for path in (BPF / "shared").glob("*_abi.h"))
WEIGHTS = "shared/weights_abi.h"  # a table, not a type

SOURCE = """
#include <linux/types.h>
enum colour { RED = 1, GREEN, LAST = 0xffffffff };
enum __attribute__((packed)) small { TINY = 7 };
struct inner { __u8 byte; __u32 word; } __attribute__((packed));
typedef struct inner inner_t;
struct outer {
	__u8 first;
	const volatile __u64 aligned;
	__s16 negative;
	enum colour colour;
	enum small small;
	struct inner inner;
	inner_t pair[2][3];
	__be16 port;
	__be32 address;
	void *pointer;
	const struct undefined *other;
	char letter;
	_Bool yes;
	float real;
	double wide;
	unsigned long size;
	__u8 tail;
};
struct flags { __u32 whole; __u32 low : 4, high : 28; };
struct after_flags { struct flags flags; };
struct anonymous { struct { __u32 a; }; __u32 b; };
union either { __u32 a; __u64 b; };
struct with_union { union either either; };
struct alternatives { __u8 a; union { __u32 b; __u16 c[2]; }; __u32 d; };
struct empty { };
struct outer keep_outer;
struct after_flags keep_flags;
struct anonymous keep_anonymous;
struct with_union keep_union;
struct alternatives keep_alternatives;
struct empty keep_empty;
"""


def clang(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CLANG, *arguments, "-x", "c", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )


def compiled(path: Path, source: str, *arguments: str) -> Path:
    done = clang(source, "-target", "bpf", "-O2", *INCLUDES, *arguments, "-c", "-o", str(path))
    assert not done.returncode, done.stderr
    return path


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Btf:
    return Btf.of(compiled(tmp_path_factory.mktemp("btf") / "sample.o", SOURCE, "-g"))


def members(name: str, dtype: np.dtype) -> Iterator[str]:
    """Assertions in C of a struct's size, and of each member's offset, size and length, including
    those of nested structs.
    """
    yield f"sizeof({name}) == {dtype.itemsize}"
    for field in dtype.names or ():
        kind, offset = dtype.fields[field][:2]
        yield f"__builtin_offsetof({name}, {field}) == {offset}"
        yield f"sizeof((({name} *)0)->{field}) == {kind.itemsize}"
        place = f"((({name} *)0)->{field})" + "[0]" * len(kind.shape)
        if kind.base.names:
            yield from members(f"__typeof__({place})", kind.base)
        else:
            yield f"sizeof({place}) == {kind.base.itemsize}"


def refusals(assertions: list[str], headers: str, *arguments: str) -> str:
    source = headers + "".join(f'_Static_assert({one}, "");\n' for one in assertions)
    return clang(source, *arguments, *INCLUDES, "-fsyntax-only").stderr


def test_a_struct_has_the_compilers_layout(sample) -> None:
    outer = sample.dtype("outer")
    source = SOURCE.replace(
        "const volatile __u64 aligned", "__u64 aligned"
    )  # typeof would keep the qualifiers
    assert refusals(list(members("struct outer", outer)), source, "-target", "bpf") == ""
    assert outer["pair"].shape == (2, 3)
    assert {
        name: outer[name].str
        for name in ("negative", "colour", "small", "port", "address", "pointer")
    } == {
        "negative": "<i2",
        "colour": "<u4",
        "small": "|u1",
        "port": ">u2",
        "address": ">u4",
        "pointer": "<u8",
    }
    assert [outer[name].kind for name in ("letter", "yes", "real", "wide", "size")] == [
        "i",
        "b",
        "f",
        "f",
        "u",
    ]


def test_a_wrong_layout_would_be_refused(sample) -> None:
    assert "static_assert failed" in refusals(
        ["sizeof(struct outer) == 1"], SOURCE, "-target", "bpf"
    )


def test_enumerations_and_their_members(sample) -> None:
    assert {one.name: one.value for one in sample.enum("colour")} == {
        "RED": 1,
        "GREEN": 2,
        "LAST": 0xFFFFFFFF,
    }
    assert sample.constant("TINY") == 7


def test_a_struct_without_members(sample) -> None:
    assert sample.dtype("empty").itemsize == 0


def test_members_of_an_unnamed_union_are_at_the_same_place(sample) -> None:
    layout = sample.dtype("alternatives")
    assert {name: offset for name, (_, offset) in layout.fields.items()} == {
        "a": 0,
        "b": 4,
        "c": 4,
        "d": 8,
    }
    assert layout["c"] == np.dtype(("<u2", (2,)))
    assert layout.itemsize == 12


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda btf: btf.dtype("nothing"),
            "has no struct 'nothing': it has after_flags, alternatives",
        ),
        (lambda btf: btf.dtype("colour"), "has no struct 'colour'"),
        (lambda btf: btf.enum("outer"), "has no enum 'outer': it has colour, small"),
        (lambda btf: btf.constant("BLUE"), "has no enumerator 'BLUE'"),
        (lambda btf: btf.dtype("flags"), "struct flags: 'low' is a bit field"),
        (lambda btf: btf.dtype("after_flags"), "struct flags: 'low' is a bit field"),
        (lambda btf: btf.dtype("anonymous"), "struct anonymous has a member without a name"),
        (lambda btf: btf.dtype("with_union"), "'either', BTF kind 5, has no dtype"),
    ],
)
def test_missing_types_and_constants_are_named(sample, ask, said) -> None:
    with pytest.raises(KernelError, match=re.escape(said)):
        ask(sample)


def test_files_without_btf_are_refused(tmp_path) -> None:
    text = tmp_path / "text.o"
    text.write_text("int main;")
    with pytest.raises(KernelError, match=r"text\.o is not a 64-bit little-endian ELF object"):
        Btf.of(text)
    with pytest.raises(
        KernelError, match=r"plain\.o has no section \.BTF: it was compiled without -g"
    ):
        Btf.of(compiled(tmp_path / "plain.o", SOURCE))


@pytest.mark.parametrize("damage", ["magic", "cut", "kind"])
def test_damaged_btf_is_refused(damage) -> None:
    int_type = bytes.fromhex("01000000 00000001 04000000 20000000")
    data = bytearray(
        bytes.fromhex("9feb 01 00 18000000 00000000 10000000 10000000 05000000")
        + int_type
        + b"\0int\0"
    )
    assert Btf(bytes(data), "good").names("struct") == []
    if damage == "magic":
        data[0] ^= 1
    elif damage == "kind":
        data[24 + 7] = 31
    with pytest.raises(KernelError, match=r"^bad: "):
        Btf(bytes(data[:20] if damage == "cut" else data), "bad")


def test_plans_have_no_more_hosts_than_masks_have_bits() -> None:
    assert abi.constant("FATE_MAX_HOSTS") == abi.constant("RING_MAX_RANKS") == MAX_HOSTS


def declared(word: str) -> set[str]:
    text = "".join((BPF / name).read_text() for name in HEADERS)
    return set(re.findall(rf"^{word} (\w+) \{{", text, re.MULTILINE))


@pytest.mark.parametrize("word", ["struct", "enum"])
def test_the_contract_keeps_every_type_of_the_shared_headers(word) -> None:
    """clang omits types that nothing uses, so a type that `bpf/abi.bpf.c` does not keep is missing
    here.
    """
    assert declared(word) == set(Btf.of(compile_bpf("abi")).names(word))


def test_native_code_and_programs_agree_with_python_on_the_layout_of_shared_structs() -> None:
    headers = "".join(f'#include "{name}"\n' for name in HEADERS)
    wanted = [
        one
        for name in sorted(declared("struct"))
        for one in members(f"struct {name}", abi.dtype(name))
    ]
    assert len(wanted) > 1000
    for flags in (FLAGS, (*NATIVE_FLAGS, "-Wno-unused-const-variable")):
        assert refusals(wanted, headers, *flags) == ""


@pytest.mark.parametrize("name", HEADERS)
def test_shared_headers_are_complete_and_need_only_the_kernels_types(name) -> None:
    text = (BPF / name).read_text()
    assert set(re.findall(r"#include <(.*)>", text)) <= {"linux/types.h"}
    assert set(re.findall(r'#include "(.*)"', text)) <= {Path(one).name for one in HEADERS}
    assert "static __always_inline" not in text
    assert refusals([], f'#include "{name}"\n', *NATIVE_FLAGS, "-Wno-unused-const-variable") == ""


def test_headers_of_ring_and_exchange_can_be_included_together() -> None:
    """Names of functions, maps and types have their system's prefix."""
    program = (
        '#include "ring_submission.h"\n#include "pinch_ack.h"\n#include "pinch_meet.h"\n#include'
        ' "impair.h"\n'
    )
    assert refusals([], program, *FLAGS) == ""
    assert "redefinition of 'ring_frame'" in refusals(
        [], program + "struct ring_frame { int again; };\n", *FLAGS
    )


def test_members_of_structs_are_attributes() -> None:
    control = abi.Struct("ring_control", verified=5, progress=1 << 40)
    control.tensors[1] = (2, 3, 4, 1, 0, 0)
    other = abi.Struct(np.frombuffer(bytes(control), abi.dtype("ring_control")))
    assert (other.verified, other.progress, other.tensors.tolist()) == (
        5,
        1 << 40,
        [(0, 0, 0, 0, 0, 0), (2, 3, 4, 1, 0, 0)],
    )
    assert type(other.verified) is int
    with pytest.raises(AttributeError, match="no member 'nothing'"):
        control.nothing = 1
    with pytest.raises(AttributeError, match="no member 'nothing'"):
        _ = control.nothing
    with pytest.raises(OverflowError):
        control.verified = 1 << 32


@pytest.mark.parametrize(
    ("counters", "system"), [(memory.COUNTERS, "RING"), (pinch_memory.COUNTERS, "PINCH")]
)
def test_ring_and_exchange_count_drops_under_the_same_names(counters, system) -> None:
    assert counters[abi.constant("DROP_BAD_COOKIE")] == "bad_cookie"
    assert counters[abi.constant(f"{system}_SENT")] == "sent"
    assert len(counters) == len(set(counters)) == abi.constant(f"{system}_COUNTERS")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "from testbed.cli import main; main()", "--help"),
        pytest.param(
            ("-c", "from testbed.cli import main; main()", "doctor"), marks=pytest.mark.deep
        ),
        ("-m", "pytest", "."),
    ],
    ids=["help", "doctor", "plugin"],
)
def test_nothing_is_compiled_before_a_layout_is_asked_for(tmp_path, arguments) -> None:
    """The command's help, the doctor, and the plugin, which every pytest imports, work without
    clang.
    """
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    environment = {
        "PATH": str(tmp_path),
        "TESTBED_BUILD": str(tmp_path / "build"),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    assert done.stdout
    assert "doctor" in arguments or done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "build", "said"),
    [
        ("", "build", "clang is not installed: run `make setup`"),
        (str(Path(CLANG).parent), "file", "no folder to compile to: "),
    ],
)
def test_the_error_says_what_is_missing_for_a_layout(tmp_path, path, build, said) -> None:
    (tmp_path / "file").touch()
    environment = {"PATH": path, "TESTBED_BUILD": str(tmp_path / build)}
    code = "from testbed.kernel.abi import dtype; dtype('ring_frame')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1].startswith(f"testbed.core.errors.KernelError: {said}")
