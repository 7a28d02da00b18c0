"""Files of torch.save: what torch reads is read, and what would be larger than its file is not."""

import io
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testbed.core.errors import SpecError
from testbed.gnn.torch_file import Tensor, TorchFile
from testbed.gnn.unpickle import Foreign
from tests.support.damage import little_memory, refusals
from tests.support.tiers import broad

MIB = 1 << 20


def saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def arrays(path: Path, data: bytes) -> dict[str, Any]:
    """The dense tensors in a file, if it holds a dictionary."""
    path.write_bytes(data)
    file = TorchFile(path)
    found = file.content.items() if isinstance(file.content, dict) else ()
    return {name: file.array(each, name) for name, each in found if isinstance(each, Tensor)}


def repacked(data: bytes, compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """A file with members replaced, by name with ``_`` for ``.`` and ``/``."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", compression) as new:
        for name in old.namelist():
            key = name.partition("/")[2].replace(".", "_").replace("/", "_")
            new.writestr(name, members.get(key, old.read(name)))
    return made.getvalue()


DENSE = {
    "floats": torch.arange(6.0).reshape(2, 3),
    "doubles": torch.linspace(0, 1, 5, dtype=torch.float64),
    "halves": torch.linspace(0, 1, 5).half(),
    "integers": torch.tensor([[1, -2], [3, 4]]),
    "bytes": torch.tensor([1, 255], dtype=torch.uint8),
    "shorts": torch.tensor([1, 65535], dtype=torch.uint16),
    "truth": torch.tensor([True, False]),
    "number": torch.tensor(3),
    "empty": torch.zeros(0, 4),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "part": torch.arange(10)[2:8:2],
    "learned": torch.nn.Parameter(torch.ones(3)),
    "traced": torch.ones(3, requires_grad=True),
}


@pytest.mark.parametrize("protocol", [2, 4])
def test_dense_tensors_are_read(tmp_path: Path, protocol: int) -> None:
    named = torch.ones(2)
    named.note = "text"  # type: ignore[attr-defined]
    shared = torch.arange(4)
    tensors = {**DENSE, "named": named, "one": shared, "other": shared[1:]}
    found = arrays(tmp_path / "x.pt", saved(tensors, pickle_protocol=protocol))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor.detach().numpy(), err_msg=name)


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    values = torch.tensor([1.0, -0.5, 3e38, float("inf")]).bfloat16()
    found = arrays(tmp_path / "x.pt", saved({"x": values}))["x"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values.float().numpy())


def test_the_order_of_bytes_is_the_files(tmp_path: Path) -> None:
    swapped = np.arange(4, dtype=">f4").tobytes()
    data = repacked(saved({"x": torch.arange(4.0)}), byteorder=b"big", data_0=swapped)
    assert arrays(tmp_path / "x.pt", data)["x"].tolist() == [0, 1, 2, 3]


def others() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes
        return {
            "sparse": torch.eye(3).to_sparse(),
            "compressed": torch.eye(3).to_sparse_csr(),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "meta": torch.ones(3, device="meta"),
            "negated": torch.complex(torch.ones(2), torch.ones(2)).conj().imag,
            "type": torch.float32,
            "set": {1, 2},
            "text": "x",
        }


def test_other_tensors_are_there_but_not_read(tmp_path: Path) -> None:
    (place := tmp_path / "x.pt").write_bytes(saved(given := others()))
    content = TorchFile(place).content
    assert content.keys() == given.keys()
    assert not [name for name, each in content.items() if isinstance(each, Tensor)]


EXPANDED = {
    "a stride of 0": lambda: saved({"x": torch.zeros(1).expand(1 << 30)}),
    "overlapping rows": lambda: saved({"x": torch.zeros(1 << 10).unfold(0, 512, 1)}),
    "complex numbers": lambda: saved({"x": torch.zeros(2, dtype=torch.complex64)}),
    "a compressed storage": lambda: repacked(
        saved({"x": torch.zeros(8 * MIB)}), zipfile.ZIP_DEFLATED
    ),
    "a compressed pickle": lambda: repacked(
        saved({"x": torch.zeros(1)}), zipfile.ZIP_DEFLATED, data_pkl=bytes(64 * MIB)
    ),
    "a storage that lacks bytes": lambda: repacked(saved({"x": torch.zeros(99)}), data_0=b"1234"),
    "a storage that has too many": lambda: repacked(saved({"x": torch.zeros(2)}), data_0=bytes(99)),
    "two pickles": lambda: (
        repacked(saved({"x": torch.zeros(2)}), version=b"")
        + repacked(saved({"x": torch.zeros(2)}))[:-1]
    ),
    "the format of before 1.6": lambda: saved(
        {"x": torch.zeros(2)}, _use_new_zipfile_serialization=False
    ),
    "a pickle alone": lambda: pickle.dumps({"x": 1}),
    "many storages": lambda: repacked(saved(0), data_pkl=b"X\x07\0\0\0storageQ."),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_what_is_larger_than_its_file_is_refused(tmp_path: Path, name: str) -> None:
    data = EXPANDED[name]()
    assert len(data) < MIB
    with little_memory(4 * MIB), pytest.raises(SpecError) as caught:
        arrays(tmp_path / "x.pt", data)
    assert "\n" not in str(caught.value)


def test_a_call_that_would_allocate_is_not_made(tmp_path: Path) -> None:
    call = b"cbuiltins\nbytearray\n\x8a\x05\0\0\0\0\x10\x85R."
    (place := tmp_path / "x.pt").write_bytes(repacked(saved(0), data_pkl=call))
    assert TorchFile(place).content == Foreign("builtins bytearray")


@pytest.mark.parametrize("seed", broad(range(20)))
def test_damaged_files_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    whole = saved({**DENSE, **others()})
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        content = archive.read("archive/data.pkl")
    read = lambda data: arrays(tmp_path / "x.pt", data)  # noqa: E731
    assert refusals(read, [whole], seed, 100, 16 * MIB) > 20
    inside = lambda data: read(repacked(whole, data_pkl=data))  # noqa: E731
    assert refusals(inside, [content], seed, 150, 16 * MIB) > 50
