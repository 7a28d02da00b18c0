"""Data sets that torch-geometric has processed, and files that look like them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from testbed.core.errors import SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.pyg import PygSpec, pyg_graph

if TYPE_CHECKING:
    from torch_geometric.data import Data


def graph(**changed: Any) -> "Data":
    from torch_geometric.data import Data  # takes seconds

    masks = {
        f"{name}_mask": torch.tensor([vertex == at for vertex in range(4)])
        for at, name in enumerate(("train", "val", "test"))
    }
    values = {
        "x": torch.arange(12, dtype=torch.float64).reshape(4, 3),
        "edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]),
        "y": torch.tensor([[0], [1], [2], [1]]),
        **masks,
        **changed,
    }
    return Data(**{name: value for name, value in values.items() if value is not None})


def saved(folder: Path, *graphs: "Data") -> PygSpec:
    from torch_geometric.data import InMemoryDataset

    (folder / "processed").mkdir()
    InMemoryDataset.save(list(graphs), str(folder / "processed" / "data.pt"))
    return PygSpec(name="pyg", path=str(folder))


def test_a_graph_with_its_split(tmp_path: Path) -> None:
    spec = saved(tmp_path, graph())
    found = pyg_graph(spec)
    assert (found.num_vertices, found.num_edges, found.num_classes) == (4, 6, 3)
    assert found.x.dtype == np.float32
    assert found.y.tolist() == [0, 1, 2, 1]
    assert [part.tolist() for part in (found.train, found.val, found.test)] == [[0], [1], [2]]
    at = PygSpec(name="pyg", path="processed/data.pt").resolve(tmp_path)
    np.testing.assert_array_equal(pyg_graph(at).x, found.x)


def test_it_is_cached_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = saved(tmp_path, graph())
    first = spec.prepare()
    assert spec.prepare() == first
    assert GraphData.load(first).y.tolist() == [0, 1, 2, 1]


def test_one_of_several_splits_or_a_random_one(tmp_path: Path) -> None:
    masks = dict.fromkeys(("train_mask", "val_mask", "test_mask"))
    several = torch.tensor([[True, False], [False, True], [False, False], [False, False]])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    spec = saved(tmp_path / "a", graph(**dict.fromkeys(masks, several)))
    second = spec.model_copy(update={"split": 1})
    assert (pyg_graph(spec).train.tolist(), pyg_graph(second).train.tolist()) == ([0], [1])
    with pytest.raises(SpecError, match="has 2 splits: split = 2"):
        pyg_graph(spec.model_copy(update={"split": 2}))
    drawn = pyg_graph(saved(tmp_path / "b", graph(**masks)))
    assert sorted([*drawn.train, *drawn.val, *drawn.test]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"x": None}, "x: must be a dense tensor; the graph has edge_index, "),
        ({"x": torch.full((4, 3), torch.nan)}, "x: must be finite numbers"),
        ({"edge_index": torch.tensor([[0], [4]])}, "edge_index: must be two rows of vertices"),
        ({"y": torch.tensor([0.5, 1, 1, 1])}, "y: must be a label from 0 for each of 4 vertices"),
        ({"y": torch.tensor([0, 1])}, "y: must be a label from 0 for each of 4 vertices"),
        ({"val_mask": None}, "must have train_mask, val_mask and test_mask, or none of them"),
        ({"train_mask": torch.zeros(4, dtype=torch.bool)}, "train_mask: must name at least one"),
        ({"train_mask": torch.tensor(True)}, "train_mask: must be one bool per vertex"),
        ({"val_mask": torch.ones(4, 1, 1, dtype=torch.bool)}, "val_mask: must be one bool per"),
        ({"test_mask": torch.ones(4)}, "test_mask: must be one bool per vertex"),
        ({"x": torch.full((4, 3), 1e300, dtype=torch.float64)}, "x: must be finite numbers, as"),
        ({"x": torch.ones(4, 3).long()}, "x: must be finite numbers of floating point, not int64"),
        ({"x": torch.zeros(1, 1).expand(1 << 20, 1 << 20)}, "needs about 12"),
        ({"x": torch.ones(4, 3).to_sparse()}, "x: must be a dense tensor; it is torch._utils _reb"),
        ({"x": torch.ones(4, 3, device="meta")}, "x: must be a dense tensor; it is torch._utils"),
        ({"x": torch.zeros(4, 0)}, "x: has shape (4, 0): must have 2 axes, none of them empty"),
        ({"y": torch.tensor(1)}, "y: has shape (): must have 1 axes"),
    ],
)
def test_graphs_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        pyg_graph(saved(tmp_path, graph(**changed)))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(4, 3).bfloat16(),
        torch.ones(4, 3).half(),
        torch.ones(4, 3, requires_grad=True),
        torch.nn.Parameter(torch.ones(4, 3)),
        torch.ones(3, 4).t(),
    ],
)
def test_features_of_any_floating_point(tmp_path: Path, x: torch.Tensor) -> None:
    found = pyg_graph(saved(tmp_path, graph(x=x))).x
    assert found.dtype == np.float32
    assert found.tolist() == [[1.0] * 3] * 4


@pytest.mark.parametrize("slices", [torch.tensor([0, 4]), {"x": torch.tensor([0, 4])}, 1])
def test_slices_of_any_kind_stand_for_several_graphs(tmp_path: Path, slices: Any) -> None:
    torch.save((graph().to_dict(), slices, dict), tmp_path / "data.pt")
    with pytest.raises(SpecError, match=r"holds several graphs|other than tensors"):
        pyg_graph(PygSpec(name="pyg", path=str(tmp_path / "data.pt")))


def test_several_graphs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds several graphs: must be one"):
        pyg_graph(saved(tmp_path, graph(), graph()))


class Attack:
    """Executed by whoever unpickles it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_file_that_would_execute_something_is_refused(tmp_path: Path) -> None:
    from torch_geometric.data import Data

    file = tmp_path / "data.pt"
    torch.save(({"x": Attack(tmp_path / "trace")}, None, Data), file)
    with pytest.raises(SpecError, match=r"other than tensors \(posix\.mkdir\), which reading it"):
        pyg_graph(PygSpec(name="pyg", path=str(file)))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not a zip", b"\x80\x02N."])
def test_damaged_files_are_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "data.pt").write_bytes(data)
    with pytest.raises(SpecError) as caught:
        pyg_graph(PygSpec(name="pyg", path=str(tmp_path / "data.pt")))
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"processed/data\.pt: there is no such file"):
        pyg_graph(PygSpec(name="pyg", path=str(tmp_path)))
