"""Names: those of the testbed, those of installed packages, and any object's ``module:attribute``;
for all others, the error is one line.
"""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from testbed.collectives.registry import BACKENDS
from testbed.comm.backend import Backend
from testbed.comm.entry import Entry
from testbed.core.errors import SpecError
from testbed.core.registry import Registry, load
from testbed.exchange.interface import Exchange
from testbed.exchange.registry import EXCHANGES
from testbed.gnn.datasets import DATASETS
from testbed.gnn.models import MODELS
from testbed.gnn.partition.registry import PARTITIONERS
from testbed.workloads.registry import WORKLOADS
from topologies import TOPOLOGIES

ALL = (BACKENDS, EXCHANGES, DATASETS, MODELS, PARTITIONERS, TOPOLOGIES, WORKLOADS)


def paths(own: dict[str, Path | str]) -> Registry[Path]:
    return Registry("path", "pathlib:PurePath", own, group="testbed.none")


@pytest.mark.parametrize("registry", ALL, ids=lambda registry: registry.noun)
def test_every_name_has_its_object(registry: Registry[object]) -> None:
    assert len(list(registry.items())) == len(registry) > 0
    assert all(name in registry for name in registry)
    with pytest.raises(SpecError) as caught:
        registry["nonsense"]
    assert (
        str(caught.value)
        == f"{registry.noun} 'nonsense' does not exist: must be one of {', '.join(registry)}"
    )


@pytest.mark.parametrize(
    ("registry", "base"), [(BACKENDS, Backend), (EXCHANGES, Exchange)], ids=["backend", "exchange"]
)
def test_a_registered_class_has_a_description(registry: Registry[Entry], base: type) -> None:
    for name, entry in registry.items():
        found = load(entry.path)
        assert issubclass(found, base)
        assert (found.name, found.needs) == (name, entry.needs)


def test_only_requested_modules_are_imported() -> None:
    registry = paths({"here": Path("/"), "there": "no_such_module:PATH"})
    assert list(registry) == ["here", "there"]
    assert registry["here"] == Path("/")
    with pytest.raises(
        SpecError, match="no_such_module:PATH: cannot be loaded: No module named 'no_such_module'"
    ):
        registry["there"]


def test_the_order_of_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [
        EntryPoint("here", "pathlib:PosixPath", "g"),
        EntryPoint("a:b", "pathlib:PureWindowsPath", "g"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: installed)
    registry = paths({"here": Path("/")})
    assert list(registry) == ["here", "a:b"]
    assert registry["here"] == Path("/")
    assert registry["a:b"] == load("pathlib:PureWindowsPath")
    assert registry["pathlib:PurePosixPath"] == load("pathlib:PurePosixPath")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("os:sep", "path os:sep: must be a PurePath, not '/'"),
        ("os:nothing", "path os:nothing: cannot be loaded: module 'os' has no attribute 'nothing'"),
        (":sep", "path :sep: cannot be loaded: Empty module name"),
    ],
)
def test_objects_of_another_kind_are_refused(name: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        paths({})[name]
    assert str(caught.value) == text


def test_a_class_of_another_package_is_a_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from testbed.comm.backend import Backend\nclass Remote(Backend):\n    'One"
        " line.\\n\\nMore.'\n"
    )
    (tmp_path / "remote_backend.py").write_text(f"{text}    needs = 'xdp'\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = BACKENDS["remote_backend:Remote"]
    assert entry == Entry("remote_backend:Remote", "xdp", "One line.")
    assert entry.in_kernel
    assert EXCHANGES["remote_backend:Remote"].all_reduce == "xdp-ring"
