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
from testbed.core.registry import Registry, load, registered_only
from testbed.exchange.interface import Exchange
from testbed.exchange.registry import EXCHANGES
from testbed.gnn.datasets import DATASETS
from testbed.gnn.models import MODELS
from testbed.gnn.partition.registry import PARTITIONERS
from testbed.workloads.dnn.architectures import ARCHITECTURES
from testbed.workloads.module.task import TASKS
from testbed.workloads.registry import WORKLOADS
from topologies import TOPOLOGIES

ALL = (
    ARCHITECTURES,
    TASKS,
    BACKENDS,
    EXCHANGES,
    DATASETS,
    MODELS,
    PARTITIONERS,
    TOPOLOGIES,
    WORKLOADS,
)


REMOTE = """
from testbed.comm.backend import Backend


class Remote(Backend):
    '''One line.

    More.
    '''

    needs = "xdp"

    def connect(self): ...
    def _all_reduce(self, tensor, out): ...
    def counters(self): ...
    def close(self): ...


class Begun(Backend):
    def connect(self): ...
    def close(self): ...
"""


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
        == f"{registry.noun} 'nonsense' does not exist: must be one of {', '.join(registry)},"
        " or module:Class"
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
        ("os:sep", "path os:sep: must be a subclass of pathlib.PurePath, not '/'"),
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
    (tmp_path / "remote_backend.py").write_text(REMOTE)
    monkeypatch.syspath_prepend(tmp_path)
    entry = BACKENDS["remote_backend:Remote"]
    assert entry == Entry("remote_backend:Remote", "xdp", "One line.")
    assert entry.in_kernel
    with pytest.raises(
        SpecError,
        match=r"remote_backend:Remote: must be a subclass of testbed\.exchange\.",
    ):
        EXCHANGES["remote_backend:Remote"]


def test_a_class_that_is_not_finished_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what has to be written."""
    (tmp_path / "begun_backend.py").write_text(REMOTE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError) as caught:
        BACKENDS["begun_backend:Begun"]
    assert str(caught.value) == "backend begun_backend:Begun: does not define _all_reduce, counters"


def test_an_instance_where_a_class_belongs_and_the_reverse() -> None:
    with pytest.raises(SpecError, match="must be a subclass of"):
        BACKENDS["testbed.gnn.models:MODELS"]
    with pytest.raises(SpecError, match="must be a Workload, not <class"):
        WORKLOADS["testbed.workloads.workload:Workload"]


def test_a_module_that_fails_is_one_line_and_does_not_stop_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "failing_module.py"
    module.write_text("def half(n):\n    return 1 / n\nhalf(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = f"cannot be loaded: ZeroDivisionError: division by zero ({module}:2)"
    with pytest.raises(SpecError) as caught:
        load("failing_module:X")
    assert str(caught.value) == f"failing_module:X: {text}"
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group: [EntryPoint("x", "failing_module:X", group)],
    )
    (listed,) = paths({}).listed()
    assert (listed.name, listed.summary) == ("x", f"path failing_module:X: {text}")


def test_what_is_said_of_each_object() -> None:
    for registry in ALL:
        for each in registry.listed():
            assert (each.origin, bool(each.summary), "\n" in each.summary) == (
                "testbed",
                True,
                False,
            ), each


@pytest.mark.parametrize("registry", ALL, ids=lambda registry: registry.noun)
def test_strangers_name_only_what_is_registered(registry: Registry[object]) -> None:
    name = registry.own[0]
    with registered_only("may not be", besides=["os:mine"]):
        assert registry[name] is not None
        for other in ("os:system", "os:", ":", f"{name}:X"):
            with pytest.raises(SpecError, match=r"^may not be$"):
                registry[other]
        with pytest.raises(SpecError, match="os:mine: cannot be loaded"):
            registry["os:mine"]
    with pytest.raises(SpecError, match="must be a"):
        registry["os:system"]
