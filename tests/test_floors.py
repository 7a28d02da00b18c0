"""Which room may import which: the floors of the house, from the ground up. docs/architecture.md
says what each is for.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = (
    "core",
    "host",
    "kernel",
    "native",
    "plan",
    "protocol",
    "fabric",
    "worker",
    "datapath",
    "comm",
    "collectives",
    "exchange",
    "gnn",
    "faults",
    "probes",
    "results",
    "workloads",
    "scenario",
    "run",
    "bench",
    "testing",
    "soak",
    "cli",
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted((ROOT / "testbed").rglob("*.py"))}


def is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def imports(path: Path, types: bool = True) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it.

    :param types: Whether what is imported for annotations alone counts.
    """
    tree = ast.parse(path.read_text())
    if not types:
        tree.body = [node for node in tree.body if not is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (
                name if name in MODULES else node.module for name in names if node.module in MODULES
            )


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_room_has_its_floor() -> None:
    assert {room_of(module) for module in MODULES} - {"", "__main__"} == set(FLOORS)


@pytest.mark.parametrize("room", FLOORS)
def test_no_room_imports_one_above(room: str) -> None:
    below = FLOORS[: FLOORS.index(room) + 1]
    upward = [
        f"{module} imports {found}"
        for module, path in MODULES.items()
        if room_of(module) == room
        for found in imports(path)
        if room_of(found) and room_of(found) not in below
    ]
    assert upward == []


def test_no_modules_import_each_other() -> None:
    """Within a room annotations may name one another's classes."""
    graph = {module: set(imports(path, types=False)) - {module} for module, path in MODULES.items()}
    for (
        module,
        path,
    ) in MODULES.items():  # a package takes names from its own modules, and they from one another
        if path.name == "__init__.py":
            graph[module] = {found for found in graph[module] if not found.startswith(f"{module}.")}
    TopologicalSorter(graph).prepare()


def test_tests_import_no_tests() -> None:
    """What several of them need is in ``tests.support``."""
    found = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        for module in names_in(node)
        if f"{module}.".startswith("tests.") and not f"{module}.".startswith("tests.support.")
    ]
    assert found == []


def names_in(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
