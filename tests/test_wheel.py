"""The package as others install it: a wheel in a fresh virtual environment, used from an empty
folder. All paths contain a space, even that of the temporary folder.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = """
import numpy as np
import pytest


@pytest.mark.fabric(hosts=2)
@pytest.mark.group(backend="xdp-ring")
def test_sum(group):
    assert [total.tolist() for total in group.all_reduce([np.ones(2, np.float32)] * 2)] == [[2, 2]] * 2
"""  # noqa: E501

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run a command in the fresh environment, which shares only the packages that the project
    requires.
    """
    folder = tmp_path_factory.mktemp("a wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = folder / "source"  # setuptools leaves a build folder in the source folder
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"],
        check=True,
        capture_output=True,
    )
    for name in tracked.stdout.decode().split("\0"):
        path = ROOT / name
        if (
            name
            and path.is_file()
            and name.partition("/")[0]
            in {
                "testbed",
                "bpf",
                "topologies",
                "scenarios",
                "analysis",
                "pyproject.toml",
                "README.md",
                "LICENSE",
                "LICENSES",
            }
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(path.read_bytes())
    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", str(folder), str(source)],
        check=True,
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "venv",
            "--system-site-packages",
            "--without-pip",
            str(folder / "venv"),
        ],
        check=True,
    )
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    (site,) = (folder / "venv").glob("lib/*/site-packages")
    (site / "required.pth").write_text(sysconfig.get_path("purelib"))
    empty = folder / "empty"
    empty.mkdir()
    temporary = folder / "its tmp"
    temporary.mkdir()

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TESTBED_", "PYTHON"))
        }
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
        environment["TMPDIR"] = str(temporary)
        command = [
            str(python.with_name(arguments[0])) if arguments[0] == "testbed" else str(python),
            *arguments[1:],
        ]
        return subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.deep
def test_the_package_is_the_installed_one(installed: Command) -> None:
    done = installed(
        "python",
        "-c",
        "import testbed.host.paths as paths; print(paths.ROOT.name,"
        " paths.build_folder().parts[-2:])",
    )
    assert done.stdout == "site-packages ('testbed', 'build')\n", done.stderr


@pytest.mark.net
def test_doctor(installed: Command) -> None:
    done = installed("testbed", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 FAIL" in done.stdout


@pytest.mark.net
@pytest.mark.parametrize(
    "backends",
    [
        ("xdp-ring", "tcp-ring"),
        pytest.param(("mpi", "gloo"), marks=pytest.mark.needs("Open MPI", "torch")),
    ],
    ids=",".join,
)
def test_a_bench(installed: Command, backends: tuple[str, ...]) -> None:
    done = installed(
        "testbed",
        "bench",
        "allreduce",
        "--hosts",
        "2",
        "-b",
        "4K",
        "-e",
        "4K",
        "-n",
        "3",
        "--backends",
        ",".join(backends),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(backend in done.stdout for backend in backends)


@pytest.mark.net
def test_the_pytest_plugin(installed: Command, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    done = installed(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_mine.py")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
