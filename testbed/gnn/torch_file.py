"""Read tensors from a file of ``torch.save`` without torch: a ZIP of a pickle and of the bytes of
each storage.

``torch.load`` trusts the file's sizes: a tensor may have a stride of 0 and gigabytes, a storage be
deflated or longer than its bytes. Here a tensor is what its pickle says until it is asked for; then
its sizes are compared with the bytes that are there. Nothing is imported or called (see
`testbed.gnn.unpickle`).
"""

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.core.npy import ZIP_FAILURES
from testbed.core.numbers import cut, shown, why
from testbed.gnn.unpickle import Foreign, RefusedPickle, unpickle

__all__ = ["Tensor", "TorchFile"]

LARGEST_PICKLE: Final = 64 << 20
MOST_AXES: Final = 8

_STORAGES: Final = {
    "torch DoubleStorage": "f8",
    "torch FloatStorage": "f4",
    "torch HalfStorage": "f2",
    "torch BFloat16Storage": "bf16",
    "torch LongStorage": "i8",
    "torch IntStorage": "i4",
    "torch ShortStorage": "i2",
    "torch CharStorage": "i1",
    "torch ByteStorage": "u1",
    "torch BoolStorage": "?",
    "torch.storage UntypedStorage": "u1",
}
_ITEMS: Final = {"torch uint16": "u2", "torch uint32": "u4", "torch uint64": "u8"}
"""Types that have no class of storages."""

_KNOWN: Final = ("torch", "torch_geometric", "torch_sparse")
_PLAIN: Final = ("builtins", "__builtin__")
_CONTAINERS: Final = ("set", "complex", "bytearray")


@dataclass(frozen=True)
class _Storage(Foreign):
    """:param key: Of its bytes, in the file's folder ``data``.

    :param item: The type of its items; None: one that numpy does not have.
    :param count: Of its items, as the pickle says.
    """

    key: str
    item: str | None
    count: int


@dataclass(frozen=True)
class Tensor(Foreign):
    """A dense tensor, as its pickle describes it; strides and offset are in items."""

    storage: _Storage
    item: str | None
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchFile:
    """A file of ``torch.save``.

    :ivar content: What was saved: plain values, `Tensor`, and `Foreign` for all else of torch's.
    :raises SpecError: It is none, is damaged, or names what is not torch's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except ZIP_FAILURES as error:
            raise SpecError(
                f"{path}: is damaged, or is no file of torch.save: {why(error)}"
            ) from None
        roots = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise SpecError(f"{path}: is no file of torch.save: must have one data.pkl")
        self._root = roots[0]
        big = self._root + "byteorder" in names and self._record("byteorder", 16) == b"big"
        self._order: Literal["<", ">"] = ">" if big else "<"
        try:
            self.content = unpickle(self._record("data.pkl", LARGEST_PICKLE), _Torch())
        except RefusedPickle as error:
            raise SpecError(f"{path}: {error}") from None

    def array(self, tensor: Tensor, name: str) -> NDArray[Any]:
        """Return the values of a tensor; of bfloat16 as float32.

        :param name: For errors.
        :raises SpecError: Its sizes are not those of its bytes.
        """
        place, storage = f"{self._path}: {name}", tensor.storage
        if tensor.item is None:
            raise SpecError(f"{place}: is of a type that cannot be read ({storage.name})")
        half = tensor.item == "bf16"
        item = np.dtype("u2" if half else tensor.item).newbyteorder(self._order)
        size = storage.count * _size(storage.item)
        elements = math.prod(tensor.shape)
        steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True)]
        if elements and (tensor.offset + max(elements, sum(steps) + 1)) * item.itemsize > size:
            raise SpecError(
                f"{place}: has shape {shown(tensor.shape)} and {size} bytes: must have bytes of its"
                " own for each element"
            )
        if not elements:
            return np.zeros(tensor.shape, item)
        data = self._record(f"data/{storage.key}", size)
        if len(data) != size:
            raise SpecError(f"{place}: is damaged: has {len(data)} of {size} bytes")
        values = np.frombuffer(data, item, offset=tensor.offset * item.itemsize)
        strides = [step * item.itemsize for step in tensor.strides]
        found: NDArray[Any] = as_strided(values, tensor.shape, strides, writeable=False)
        if half:
            found = (found.astype(np.uint32) << 16).view(np.float32)
        return found

    def _record(self, name: str, most: int) -> bytes:
        """Return a part of the file.

        :param most: Bytes that it may have.
        :raises SpecError: It has more, is not there, is compressed, or is damaged.
        """
        try:
            with zipfile.ZipFile(self._path) as archive:
                entry = archive.getinfo(self._root + name)
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("is compressed, which torch.save never does")
                if entry.file_size > most:
                    raise ValueError(f"has {entry.file_size} bytes: must be at most {most}")
                return archive.read(entry)
        except ZIP_FAILURES as error:
            raise SpecError(f"{self._path}: {cut(name)}: is damaged: {why(error)}") from None


class _Torch:
    """What torch's pickles have besides; see `testbed.gnn.unpickle.Dialect`."""

    def named(self, name: str) -> Foreign:
        """Stand for everything of torch's."""
        module, _, attribute = name.partition(" ")
        if not (
            module.partition(".")[0] in _KNOWN
            or module == "collections"
            or (module in _PLAIN and attribute in _CONTAINERS)
        ):
            raise RefusedPickle(
                f"holds something other than tensors ({cut('.'.join(name.split()))}), which reading"
                " it might execute: must be written by InMemoryDataset.save of torch-geometric 2.5"
                " or later"
            )
        return Foreign(name)

    def made(self, called: Foreign, arguments: Any) -> Any:
        """Make descriptions of dense tensors, and of all else that it is there."""
        match called.name, arguments:
            case "collections OrderedDict", ():
                return {}
            case "torch._tensor _rebuild_from_type_v2", (
                Foreign() as inner,
                _,
                tuple() as given,
                _,
            ):
                return self.made(inner, given) if inner.name in _REBUILD else inner
            case (
                "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state",
                (Tensor() as tensor, *_),
            ):
                return tensor
            case "torch._utils _rebuild_tensor_v2", (
                _Storage() as storage,
                int() as offset,
                tuple() as shape,
                tuple() as strides,
                _,
                _,
            ):
                return _tensor(storage, storage.item, offset, shape, strides)
            case "torch._utils _rebuild_tensor_v3", (
                _Storage() as storage,
                int() as offset,
                tuple() as shape,
                tuple() as strides,
                _,
                _,
                Foreign(name=kind),
            ):
                return _tensor(storage, _ITEMS.get(kind), offset, shape, strides)
        return Foreign(called.name)

    def persistent(self, key: Any) -> Any:
        """Return a storage."""
        match key:
            case ("storage", Foreign(name=kind), str() as number, _, int() as count) if count >= 0:
                return _Storage(kind, number, _STORAGES.get(kind), count)
        raise RefusedPickle("has a storage that is none of torch's")


_REBUILD: Final = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3")


def _tensor(
    storage: _Storage,
    item: str | None,
    offset: int,
    shape: tuple[Any, ...],
    strides: tuple[Any, ...],
) -> Tensor:
    numbers = (offset, *shape, *strides)
    if (
        len(shape) != len(strides)
        or len(shape) > MOST_AXES
        or not all(type(number) is int and number >= 0 for number in numbers)
    ):
        raise RefusedPickle("has a tensor whose shape and strides do not fit")
    return Tensor("torch Tensor", storage, item, offset, shape, strides)


def _size(item: str | None) -> int:
    return 0 if item is None else 2 if item == "bf16" else np.dtype(item).itemsize
