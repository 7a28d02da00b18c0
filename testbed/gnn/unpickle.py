"""Read pickles of arrays, sparse matrices and lists without importing, creating or calling anything
that they name.

A pickle is a program, and ``pickle.Unpickler`` runs it: it imports and calls whatever the pickle
names. Even restricted to a list of allowed names, it allocates gigabytes for a high memo index, and
hashes nested keys for hours. Here the opcodes, as pickletools decodes them, act on plain values
only. The names under which arrays and matrices are pickled stand for values of this module; every
other name is refused, and so are inconsistent pickles.

Pickles may be Python 2's of protocol 2, as the published graphs are (bytes are strings in latin-1,
modules have their old names), or Python 3's of protocols 2 to 4.
"""

import pickletools
import re
import warnings
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
from scipy.sparse import csr_matrix

from testbed.core.numbers import cut, shown

__all__ = ["MOST_OPCODES", "Dialect", "Foreign", "RefusedPickle", "unpickle"]

MOST_OPCODES: Final = (
    1 << 22
)  # PubMed's graph has 0.2 million; each takes about 100 bytes while the pickle is read
COPIES: Final = 4  # times the pickle's size, in bytes; a pickle without repetitions needs two
SPARE: Final = 1 << 16  # additional bytes, because small pickles are mostly names
MATRIX: Final = 1 << 10  # bytes charged per matrix, because even an empty one takes 0.1 ms to check

NUMBERS: Final = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
STRINGS: Final = {
    "BINSTRING",
    "SHORT_BINSTRING",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINBYTES",
    "SHORT_BINBYTES",
}
CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
IGNORED: Final = {"PROTO", "FRAME"}

_ITEM = re.compile(r"[fiu][1248]")  # numbers only: no objects, strings or records


class _Name(Enum):
    """What a name stands for."""

    NEW_ARRAY = "numpy.core.multiarray _reconstruct"
    ARRAY = "numpy ndarray"
    ITEM = "numpy dtype"
    CSR = "scipy.sparse.csr csr_matrix"
    DEFAULTDICT = "collections defaultdict"
    LIST = "__builtin__ list"
    INT = "__builtin__ int"
    ENCODE = "_codecs encode"  # how Python 3 writes bytes for Python 2; for empty bytes:
    BYTES = "__builtin__ bytes"


NAMES: Final = {
    **{name.value: name for name in _Name},
    "numpy._core.multiarray _reconstruct": _Name.NEW_ARRAY,
    "scipy.sparse._csr csr_matrix": _Name.CSR,
    "builtins list": _Name.LIST,
    "builtins int": _Name.INT,
}


class RefusedPickle(ValueError):
    """A pickle is broken, or contains something that is not allowed; the text says what, but not in
    which file.
    """


@dataclass(frozen=True)
class Foreign:
    """What a pickle names or makes that is of another library. Nothing of it is known here.

    :param name: Its module and its name.
    """

    name: str


class Dialect(Protocol):
    """What another library's pickles have besides."""

    def named(self, name: str) -> Foreign:
        """Return what a module's name, such as ``torch FloatStorage``, stands for.

        :raises RefusedPickle: It may not be there.
        """

    def made(self, called: Foreign, arguments: Any) -> Any:
        """Return what a call makes: a `Foreign`, or a plain value."""

    def persistent(self, key: Any) -> Any:
        """Return what a persistent id stands for; its content is outside the pickle."""


class _Budget:
    """Bytes that may still be copied.

    A pickle can refer to one string or array any number of times. A reference takes two bytes, and
    the copy made from it may be as large as the rest of the pickle.
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> None:
        """Count a copy before it is made.

        :raises RefusedPickle: The copies have exceeded the limit.
        """
        self.left -= size
        if self.left < 0:
            raise RefusedPickle("copies its strings and arrays too often")


class _Object:
    """An object that a pickle creates first and fills later; it may be referred to in between.

    :ivar value: Its type of item as text, later a dtype; an array; a matrix.
    """

    def __init__(self, kind: _Name, value: Any = None) -> None:
        self.kind = kind
        self.value = value


def unpickle(data: bytes, dialect: Dialect | None = None) -> Any:
    """Return what a pickle holds: numbers, strings, bytes, tuples, lists, dictionaries, ndarrays of
    numbers, CSR matrices.

    A ``defaultdict`` is returned as a dictionary. Memory and time grow only with the length of
    `data`, however often it refers to one object.

    :param dialect: Another library's; its values may still be `Foreign`.
    :raises RefusedPickle: The pickle is broken, or names, creates or calls anything else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # pickletools decodes strings' escapes with a codec that warns
            return _plain(_run(data, dialect))
    except RefusedPickle:
        raise
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        # Raised for bytes that are no opcodes, for pops from an empty stack, and by scipy for a
        # matrix.
        raise RefusedPickle(f"is no pickle, or a broken one: {cut(str(error))}") from error


def _run(data: bytes, dialect: Dialect | None) -> Any:
    """Execute a pickle's opcodes; ``Lib/pickletools.py`` documents what each of them does."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    budget = _Budget(COPIES * len(data) + SPARE)

    def marked() -> list[Any]:
        """Pop everything since the last mark."""
        first = marks.pop()
        taken = stack[first:]
        del stack[first:]
        return taken

    argument: Any
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if number == MOST_OPCODES:
            raise RefusedPickle(f"has more than {MOST_OPCODES} opcodes")
        name = opcode.name
        if name in NUMBERS:
            _check_number(argument)
            stack.append(argument)
        elif name in STRINGS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in TUPLES:
            items = [stack.pop() for _ in range(TUPLES[name])]
            stack.append(tuple(reversed(items)))
        elif name not in IGNORED:
            match name:
                case "MARK":
                    marks.append(len(stack))
                case "EMPTY_LIST":
                    stack.append([])
                case "EMPTY_DICT":
                    stack.append({})
                case "TUPLE":
                    stack.append(tuple(marked()))
                case "APPEND":
                    _extend(stack[-2], [stack.pop()])
                case "APPENDS":
                    items = marked()
                    _extend(stack[-1], items)
                case "SETITEM":
                    value, key = stack.pop(), stack.pop()
                    _update(stack[-1], [key, value])
                case "SETITEMS":
                    items = marked()
                    _update(stack[-1], items)
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case "GLOBAL":
                    stack.append(_named(argument, dialect))
                case "STACK_GLOBAL":
                    attribute, module = stack.pop(), stack.pop()
                    if not isinstance(module, str) or not isinstance(attribute, str):
                        # The text of lists in lists doubles with each level.
                        raise RefusedPickle(
                            f"names {_kind(module)} and {_kind(attribute)}: must be strings"
                        )
                    stack.append(_named(f"{module} {attribute}", dialect))
                case "BINPERSID" if dialect:
                    stack.append(dialect.persistent(stack.pop()))
                case "REDUCE" | "NEWOBJ":
                    arguments, called = stack.pop(), stack.pop()
                    if dialect and isinstance(called, Foreign):
                        stack.append(dialect.made(called, arguments))
                    else:
                        stack.append(_made(called, arguments, budget))
                case "BUILD":
                    state = stack.pop()
                    if not isinstance(stack[-1], Foreign):
                        _fill(stack[-1], state, budget)
                case "STOP":
                    return stack.pop()
                case _:
                    raise RefusedPickle(
                        f"has the opcode {name}, which no array, matrix or list needs"
                    )
    raise RefusedPickle("ends early")


def _check_number(number: float) -> None:
    """Refuse whole numbers of more than 64 bits.

    Python's hash of an integer is a remainder, so arbitrarily many long integers can share one, and
    a look-up among them takes time proportional to their number. At most eight integers of 64 bits
    share a hash.
    """
    if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
        raise RefusedPickle("has a number of more than 64 bits")


def _named(name: str, dialect: Dialect | None) -> _Name | Foreign:
    if name not in NAMES:
        if dialect:
            return dialect.named(name)
        raise RefusedPickle(
            f"names {shown('.'.join(name.split()))}: must be arrays, CSR matrices, dictionaries and"
            " lists"
        )
    return NAMES[name]


def _extend(target: Any, items: list[Any]) -> None:
    if not isinstance(target, list):
        raise RefusedPickle(f"appends to {_kind(target)}")
    target.extend(items)


def _update(target: Any, items: list[Any]) -> None:
    if not isinstance(target, dict):
        raise RefusedPickle(f"sets items of {_kind(target)}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, int | str):  # hashing tuples of tuples can take forever
            raise RefusedPickle(f"has {_kind(key)} for a key")
        target[key] = value


def _made(called: Any, arguments: Any, budget: _Budget) -> Any:
    match called, arguments:
        case _Name.DEFAULTDICT, (_Name.LIST | _Name.INT,):
            return {}
        case _Name.ENCODE, (str() as text, "latin1"):
            budget.take(len(text))
            return text.encode("latin1")
        case _Name.BYTES, ():
            return b""
        case _Name.NEW_ARRAY, (_Name.ARRAY, *_):
            return _Object(_Name.ARRAY)
        case _Name.ITEM, (str() as code, *_) if _ITEM.fullmatch(code):
            return _Object(_Name.ITEM, code)
        case _Name.CSR, ():
            return _Object(_Name.CSR)
    raise RefusedPickle(f"calls {_kind(called)} in another way than arrays and matrices are made")


def _fill(target: Any, state: Any, budget: _Budget) -> None:
    """Give an object its state."""
    match target, state:
        case _Object(kind=_Name.ITEM, value=str() as code), (
            int(),
            "<" | ">" | "|" | "=" as order,
            *_,
        ):
            target.value = np.dtype(order + code)
        case _Object(kind=_Name.ARRAY), (
            int(),
            tuple() as shape,
            _Object(value=np.dtype() as item),
            bool() as turned,
            content,
        ):
            target.value = _array(shape, item, turned, content, budget)
        case _Object(kind=_Name.CSR), dict():
            target.value = _matrix(state, budget)
        case _:
            raise RefusedPickle(f"gives {_kind(target)} a state that is none of its own")


def _array(
    shape: tuple[Any, ...], item: np.dtype[Any], turned: bool, content: Any, budget: _Budget
) -> Any:
    """Return an array of numbers, given its bytes (from Python 2: as a string); `turned` means
    column-major.
    """
    if isinstance(content, str):
        budget.take(len(content))
    data = content.encode("latin1") if isinstance(content, str) else content
    if (
        not isinstance(data, bytes)
        or len(shape) > 2
        or not all(type(size) is int and size >= 0 for size in shape)
    ):
        raise RefusedPickle("has an array that is not one of numbers in one or two dimensions")
    count = int(np.prod(shape, dtype=object))
    if count * item.itemsize != len(data):
        raise RefusedPickle(f"has an array of shape {shape} and {item} with {len(data)} bytes")
    return np.frombuffer(data, item).reshape(shape, order="F" if turned else "C")


def _matrix(state: dict[str, Any], budget: _Budget) -> Any:
    """Return a CSR matrix whose parts have been checked against each other."""
    parts = [_plain(state.get(key)) for key in ("data", "indices", "indptr")]
    shape = state.get("_shape", state.get("shape"))
    if not (
        isinstance(shape, tuple) and len(shape) == 2 and all(type(size) is int for size in shape)
    ) or not all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts):
        raise RefusedPickle("has a CSR matrix without data, indices, indptr or shape")
    _, indices, indptr = parts
    if indices.dtype.kind != "i" or indptr.dtype.kind != "i" or len(indptr) != shape[0] + 1:
        raise RefusedPickle(
            f"has a CSR matrix of shape {shape} with {len(indptr)} row pointers of {indptr.dtype}"
        )
    budget.take(MATRIX + sum(part.nbytes for part in parts))
    native = (part.astype(part.dtype.newbyteorder("=")) for part in parts)
    made = csr_matrix(tuple(native), shape)
    made.check_format(full_check=True)
    return made


def _plain(value: Any) -> Any:
    """Return the final value of an object."""
    if not isinstance(value, _Object):
        return value
    if value.value is None or value.kind is _Name.ITEM:
        raise RefusedPickle(f"has {_kind(value)} without content")
    return value.value


def _kind(value: Any) -> str:
    """Describe a value for errors."""
    what = value.kind if isinstance(value, _Object) else value
    return what.value.replace(" ", ".") if isinstance(what, _Name) else type(what).__name__
