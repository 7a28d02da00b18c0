"""Pickles of plain data: they are read, and nothing else is imported, created, called or
allocated.
"""

import os
import pickle
import random
import subprocess
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_matrix, csr_matrix

from testbed.gnn import unpickle as module
from testbed.gnn.unpickle import RefusedPickle, unpickle
from tests.support.gnn import python2

MATRIX = csr_matrix(np.array([[0, 1.5, 0], [2, 0, 3]], np.float32))
GRAPH = defaultdict(list, {0: [1, 300], 1: [0], 300: [0, 70_000], 70_000: [300]})
ARRAYS = [
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(4, dtype=">i8"),
    np.zeros((0, 3), np.uint8),
]
DUMPS = [python2.dumps, *(lambda value, n=n: pickle.dumps(value, n) for n in (2, 3, 4))]


@pytest.mark.parametrize("dumps", DUMPS)
def test_arrays_matrices_and_lists(dumps) -> None:
    for array in ARRAYS:
        found = unpickle(dumps(array))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    matrix = unpickle(dumps(MATRIX))
    assert isinstance(matrix, csr_matrix)
    np.testing.assert_array_equal(matrix.toarray(), MATRIX.toarray())
    assert unpickle(dumps(GRAPH)) == GRAPH
    shared = [1, 2]
    assert unpickle(dumps([shared, shared, (1, 2, 3, 4), {"a": None}, -1.5, True])) == [
        [1, 2]
    ] * 2 + [
        (1, 2, 3, 4),
        {"a": None},
        -1.5,
        True,
    ]


class Call:
    """An attacker's pickle."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    ("hostile", "name"),
    [
        (lambda path: Call(os.system, f"touch {path}"), "posix.system"),
        (lambda path: Call(eval, f"open({str(path)!r}, 'w')"), "eval"),
        (lambda path: {"x": [Call(getattr, "", "join")]}, "getattr"),
        (lambda path: Call(np.load, str(path)), "load"),
        (lambda path: OrderedDict(), "collections.OrderedDict"),
        (lambda path: coo_matrix(MATRIX), "coo_matrix"),
        (lambda path: np.float64(1), "scalar"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, hostile, name: str, protocol: int) -> None:
    path = tmp_path / "ran"
    with pytest.raises(RefusedPickle) as refused:
        unpickle(pickle.dumps(hostile(path), protocol))
    text = str(refused.value)
    # In protocols 0 and 1, unsupported opcodes precede some of the names.
    expected = (
        [f"{name}'"] if protocol > 1 else [f"{name}'", "copy_reg._reconstructor'", "has the opcode"]
    )
    assert any(part in text for part in expected), text
    assert not path.exists()


def program(*opcodes: bytes) -> bytes:
    return b"\x80\x02" + b"".join(opcodes) + b"."


NEW_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
ITEM = b"cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNtb"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is no pickle, or a broken one: pickle exhausted before seeing STOP"),
        (b"hello", "is no pickle, or a broken one: "),
        (b"\x80\x02", "is no pickle, or a broken one: "),
        (b"\x80\x02.", "is no pickle, or a broken one: pop from empty list"),
        (program(b"K\x01\x85R"), "is no pickle, or a broken one: pop from empty list"),
        (
            program(b"c__builtin__\nlist\n(K\x01K\x02tR"),
            "calls __builtin__.list in another way than arrays",
        ),
        (
            program(b"ccollections\ndefaultdict\nccollections\ndefaultdict\n\x85R"),
            "calls collections.defaultdict in",
        ),
        (program(b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R"), "calls numpy.ndarray in another way"),
        (program(b"cnumpy\ndtype\nU\x01OK\x00K\x01\x87R"), "calls numpy.dtype in another way"),
        (program(NEW_ARRAY), "has numpy.ndarray without content"),
        (
            program(NEW_ARRAY, b"(K\x01K\x02\x85", ITEM, b"\x89U\x08abcdefghtb"),
            "shape (2,) and float64 with 8 bytes",
        ),
        (
            program(NEW_ARRAY, b"(K\x01J\xff\xff\xff\xff\x85", ITEM, b"\x89U\x00tb"),
            "has an array that is not one of numbers",
        ),
        (
            program(NEW_ARRAY, b"(K\x01", b"K\x00" * 3, b"\x87", ITEM, b"\x89U\x00tb"),
            "has an array that is not one of numbers",
        ),
        (program(NEW_ARRAY, b"}b"), "gives numpy.ndarray a state that is none of its own"),
        (
            program(b"cscipy.sparse.csr\ncsr_matrix\n)\x81}b"),
            "has a CSR matrix without data, indices, indptr or shape",
        ),
        (program(b"}K\x01K\x02\x86K\x03s"), "has tuple for a key"),
        (program(b"K\x01K\x02a"), "appends to int"),
        (program(b"]K\x01K\x02s"), "sets items of list"),
        (program(b"I1\n"), "has the opcode INT, which no array, matrix or list needs"),
        (program(b"P1\n"), "has the opcode PERSID"),
        (program(b"\x82\x01"), "has the opcode EXT1"),
    ],
)
def test_inconsistent_pickles_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(RefusedPickle) as refused:
        unpickle(data)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_arrays_of_objects_are_refused() -> None:
    with pytest.raises(RefusedPickle, match=r"calls numpy\.dtype in another way"):
        unpickle(pickle.dumps(np.array([[], []], dtype=object)))


def broken(**changes: Any) -> csr_matrix:
    matrix = MATRIX.copy()
    for key, value in changes.items():
        matrix.__dict__[key] = value
    return matrix


@pytest.mark.parametrize(
    "matrix",
    [
        broken(indices=np.array([1, 0, 9], np.int32)),
        broken(indices=np.array([1, 0, -1], np.int32)),
        broken(indices=np.array([1, 0], np.int32)),
        broken(indices=np.array([1.0, 0.0, 2.0])),
        broken(indptr=np.array([0, 2, 1], np.int32)),
        broken(indptr=np.array([0, 1, 1 << 30], np.int32)),
        broken(indptr=np.array([0, 3], np.int32)),
        broken(_shape=(1 << 40, 3)),
        broken(_shape=(2, 1 << 70)),
        broken(_shape=(2, -3)),
        broken(_shape="23"),
        broken(data=np.array([[1.0, 2.0, 3.0]])),
        broken(data=[1.0, 2.0, 3.0]),
    ],
)
def test_matrices_with_inconsistent_parts_are_refused(matrix: csr_matrix) -> None:
    with pytest.raises(RefusedPickle):
        unpickle(python2.dumps(matrix))


BOMBS = {
    "a memo with a high index": b"Nr\xff\xff\xff\x7f",
    "keys that take long to hash": b"}" + b")" + b"2\x86" * 60 + b"Ns",
    "more opcodes than any graph has": b"]" * (module.MOST_OPCODES + 1),
    "a long string that is not there": b"T\xff\xff\xff\x7f",
    "long bytes that are not there": b"\x8e" + b"\xff" * 7 + b"\x7f",
    "a long bytearray": b"\x96" + b"\xff" * 4 + b"\x00" * 4,
}
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from testbed.gnn.unpickle import RefusedPickle, unpickle
for line in sys.stdin:
    try:
        print(unpickle(bytes.fromhex(line)))
    except RefusedPickle as error:
        print("refused:", error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def in_limited_memory(bombs: list[bytes]) -> list[str]:
    """Read pickles in a process of limited memory, and check that none takes much of it."""
    lines = "".join(program(bomb).hex() + "\n" for bomb in bombs)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert not done.stderr, done.stderr
    *answers, most = done.stdout.splitlines()
    assert int(most) < 1 << 20  # KiB
    return answers


@pytest.mark.timeout(60)
@pytest.mark.deep
def test_bombs_are_refused() -> None:
    answers = in_limited_memory(list(BOMBS.values()))
    for name, answer in zip(BOMBS, answers, strict=True):
        assert answer.startswith("refused: ") or answer == "None", (name, answer)


def put(number: int) -> bytes:
    return b"r" + number.to_bytes(4, "little")


def get(number: int) -> bytes:
    return b"j" + number.to_bytes(4, "little")


def dumped(value: Any) -> bytes:
    """Push a value."""
    return python2.dumps(value)[2:-1]


def often(opcodes: bytes) -> bytes:
    """Store what they push in the memo, a few thousand times."""
    return b"](" + opcodes * 5000 + b"e"


THING, CALLED = 1000, 1001  # indices in the memo
STATE = {
    "data": np.ones(1 << 18),
    "indices": np.arange(1 << 18, dtype=np.int32),
    "indptr": np.array([0, 1 << 18], np.int32),
    "_shape": (1, 1 << 18),
}
LONG_KEY = (1 << 61) - 1  # a multiple of it has the hash 0
REPEATED = {
    "names that are lists of lists": b"]"
    + put(0)
    + b"".join(b"](" + 2 * get(n) + b"e" + put(n + 1) for n in range(40))
    + 2 * get(40)
    + b"\x93",
    "a string that is encoded": dumped(bytes(1 << 20))
    + b"U\x06latin1\x86"
    + put(THING)
    + b"c_codecs\nencode\n"
    + put(CALLED)
    + often(get(CALLED) + get(THING) + b"R"),
    "a string that is an array's": b"(K\x01J\x00\x00\x10\x00\x85"
    + ITEM.replace(b"f8", b"u1")
    + b"\x89"
    + dumped(bytes(1 << 20))
    + b"t"
    + put(THING)
    + often(NEW_ARRAY + get(THING) + b"b"),
    "parts of a matrix": dumped(STATE)
    + put(THING)
    + often(b"cscipy.sparse.csr\ncsr_matrix\n)\x81" + get(THING) + b"b"),
    "a hash that long numbers share": b"}("
    + b"".join(
        b"\x8a\x0b" + (n * LONG_KEY).to_bytes(11, "little") + b"N" for n in range(10, 200_000)
    )
    + b"u",
}
"""An object that is used many times."""


@pytest.mark.timeout(60)
def test_a_small_pickle_does_not_use_much_memory() -> None:
    answers = in_limited_memory(list(REPEATED.values()))
    for name, answer in zip(REPEATED, answers, strict=True):
        assert answer.startswith("refused: "), (name, answer)


def test_a_mutated_pickle_is_read_or_refused() -> None:
    rng = random.Random(0)
    pickles = [python2.dumps(value) for value in (*ARRAYS, MATRIX, GRAPH)]
    codes = [opcode.code.encode("latin1") for opcode in module.pickletools.opcodes]
    refused: list[str] = []
    for _ in range(5000):
        data = bytearray(rng.choice(pickles))
        for _ in range(rng.choice([1, 1, 2, 4])):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[place : place + 1] = bytes([rng.randrange(256)])
                case 1:
                    data[place:place] = b"".join(rng.choices(codes, k=rng.randrange(1, 6)))
                case 2:
                    del data[place : place + rng.randrange(1, 9)]
                case 3:
                    del data[place:]
        try:
            unpickle(bytes(data))
        except RefusedPickle as error:
            refused.append(str(error))
    assert len(refused) > 1000
    assert not any("\n" in text for text in refused)
