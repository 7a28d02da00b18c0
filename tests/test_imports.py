"""The layers of packages, from the bottom up: a package imports only from layers below it.
docs/architecture.md describes each package.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = (
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
    "sampling",
    "faults",
    "telemetry",
    "capture",
    "sim",
    "vm",
    "probes",
    "results",
    "workloads",
    "scenario",
    "run",
    "bench",
    "sweep",
    "testing",
    "soak",
    "cli",
)

SHARED_NAMES = {
    "adding": "sums that programs form of rows that have landed",
    "cache": "rows of other ranks that stay, so that they need not be sent again",
    "calls": "functions that the controller calls in workers",
    "delay_line": "the process that sends delayed frames when they are due; how punctual it is",
    "exchange": "one rank of pinch: by clones of frames, by tokens",
    "faults": "the faults of a run or a test, in force",
    "gloo": "torch.distributed's CPU backend",
    "group": "the ranks of a collective",
    "lanes": "fixed-point values of a payload: their rules, and C for large arrays",
    "layout": "how values lie in frames",
    "machine": "the machine that the testbed runs on",
    "manifest": "what a run says of itself",
    "maps": "BPF maps",
    "measures": "from results of ranks to rows of the table",
    "memory": "what programs share with their process, as reference models hold it",
    "model": "a neural network for graphs",
    "options": "models of what users set",
    "port": "one rank's end of a collective in the kernel",
    "process": "a rank's process beside its programs: reference models, and the code itself",
    "processes": "processes of hosts and runs",
    "programs": "users' BPF programs on hosts' links",
    "rank": "reference models of a rank's programs",
    "recovery": "what a rank does while something is missing",
    "reference": "what a collective must give",
    "registry": "objects by name",
    "report": "what is told at the end",
    "scenario": "what is to be played",
    "sending": "what a rank sends, and how",
    "session": "the controller's side of a workload",
    "simulated": "a scenario whose times are computed",
    "train": "training of one rank",
    "workload": "what a scenario trains or runs",
}
"""File names that several packages use, each with a single meaning. Files of `cli` are exempt,
because commands have the names that users type.
"""


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
    """The project's modules that a file imports, anywhere in it.

    :param types: Whether imports for annotations only count.
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


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_package_has_its_layer() -> None:
    assert {package_of(module) for module in MODULES} - {"", "__main__"} == set(LAYERS)


@pytest.mark.parametrize("package", LAYERS)
def test_no_package_imports_one_above(package: str) -> None:
    below = LAYERS[: LAYERS.index(package) + 1]
    upward = [
        f"{module} imports {found}"
        for module, path in MODULES.items()
        if package_of(module) == package
        for found in imports(path)
        if package_of(found) and package_of(found) not in below
    ]
    assert upward == []


def test_no_modules_import_each_other() -> None:
    """There are no import cycles, except that annotations within a package may refer to each
    other's classes.
    """
    graph = {module: set(imports(path, types=False)) - {module} for module, path in MODULES.items()}
    for (
        module,
        path,
    ) in (
        MODULES.items()
    ):  # a package imports names from its own modules, and these from one another
        if path.name == "__init__.py":
            graph[module] = {found for found in graph[module] if not found.startswith(f"{module}.")}
    TopologicalSorter(graph).prepare()


def test_files_of_one_name_are_about_one_thing() -> None:
    """A file name that is used twice must be changed, or listed in `SHARED_NAMES`."""
    paths = [path for path in MODULES.values() if package_of(module_of(path)) != "cli"]
    paths += (ROOT / "analysis").glob("*.py")  # not notebooks
    names = Counter(path.stem for path in paths if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} == SHARED_NAMES.keys()


def test_tests_import_no_tests() -> None:
    """Code that several of them need is in ``tests.support``."""
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
