"""What all tests share: skips with the doctor's messages, and the check that a session leaves
nothing behind.

``TESTBED_REQUIRE`` names tiers and capabilities (``kernel,net,BCC``) whose tests must run: a skip
is then a failure, so that a machine known to have them cannot pass by skipping.
"""

import ast
import contextlib
import fcntl
import json
import logging
import os
import re
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from testbed.probes import PROBES, TIERS, Level, find, lacking
from tests.support.outcomes import LEFT
from tests.support.waiting import wait_until

REQUIRED = {name.strip() for name in os.environ.get("TESTBED_REQUIRE", "").split(",")} - {""}
SESSION = "TESTBED_TEST_SESSION"  # in the environment of all processes of a session
STATE = Path("/run/testbed")
BEFORE = pytest.StashKey[set[str]]()
BUILT: list[str] = []  # tests that may have built networks
MODULE_MARK = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(\w+)", re.MULTILINE)
GRACE = 30.0  # seconds for what disappears by itself, such as devices of a deleted namespace

# A busy machine is no failure: whole tests have a deadline (pytest-timeout), single examples have
# none. There is no database of failures either, because any user may run the pure tests, even
# without permission to write. Examples are the same in each run, unless with
# `pytest --hypothesis-profile=other`.
settings.register_profile("other", deadline=None, database=None, print_blob=True)
settings.register_profile("testbed", settings.get_profile("other"), derandomize=True)
settings.load_profile("testbed")


def pytest_configure(config: pytest.Config) -> None:
    if unknown := REQUIRED - TIERS.keys() - PROBES.keys():
        allowed = ", ".join([*TIERS, *PROBES])
        raise pytest.UsageError(
            f"TESTBED_REQUIRE: unknown {', '.join(sorted(unknown))}; allowed: {allowed}"
        )
    if not hasattr(config, "workerinput"):  # else it is the session of the one that started this
        os.environ[SESSION] = str(uuid.uuid4())
    # A shell's background job starts with SIGINT ignored, and so do its children, which tests
    # interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module whose text shows that no test in it is of the tier that ``-m`` asks
    for, as in ``net and not deep``: importing all of them takes each worker ten seconds.
    """
    terms = config.getoption("markexpr").split(" and ")
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    if len(terms) == 1 or not all(re.fullmatch(r"(not )?\w+", term) for term in terms):
        return None
    text = collection_path.read_text()
    if any(f"mark.{term}" not in text for term in terms if term in (*TIERS, "alone")):
        return True
    of_all = MODULE_MARK.search(text)
    if of_all is None or f"not {of_all[1]}" not in terms:
        return None
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]  # in no text
    return any(ast.unparse(node.targets[0]) == "pytestmark" for node in assigned) or None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many states explorations have visited, and how mutants were detected."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "explored":
                terminalreporter.write_line(f"explored {value}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tier in TIERS:
        if item.get_closest_marker(tier):
            absent(tier, [str(finding) for finding in lacking(tier)])
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            finding = find(name)
            absent(name, [str(finding)] if finding.level is not Level.OK else [])


def absent(what: str, findings: list[str]) -> None:
    """Skip the test if the probes found that something is missing, or fail it if this session must
    run it.
    """
    if findings and what in REQUIRED:
        pytest.fail(f"TESTBED_REQUIRE has {what}, but " + "; ".join(findings), pytrace=False)
    if findings:
        pytest.skip("; ".join(findings))


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests' own cache, the same for all of a session: in an empty one, each run would try out
    for seconds which software there is.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a killed process leaves behind, and what libraries never remove, is left where pytest
    removes it.
    """
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A test that calls the command line with ``-v`` leaves the level of the log as it was."""
    logger = logging.getLogger("testbed")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture
def only_cleaner() -> Iterator[None]:
    """Nobody else's `testbed clean` removes what this test leaves behind on purpose: other tests
    that call it wait, in other workers and sessions too.
    """
    folder = os.open("/run", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # ends with the descriptor
        yield
    finally:
        os.close(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEFORE] = traces()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "net" in report.keywords:
        BUILT.append(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Compare the machine before and after a session that built networks, when all of its workers
    have ended.
    """
    yield
    config = session.config
    kept = config.getoption("keep", False)  # a fabric may stay on purpose
    if kept or hasattr(config, "workerinput") or not BUILT:
        return
    before = config.stash[BEFORE]
    with contextlib.suppress(AssertionError):  # what is left is said below
        wait_until(lambda: not traces() - before, GRACE)
    if left := traces() - before:
        config.left_behind = ", ".join(sorted(left))  # type: ignore[attr-defined]
        print(f"\n{LEFT}: {config.left_behind}")  # type: ignore[attr-defined]
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


TRACKER = "multiprocessing.resource_tracker"
"""A process that Python starts with the first one that it spawns, and that ends with this one."""


def traces() -> set[str]:
    """Name the processes, namespaces, devices and state files that tests could leave behind."""
    found = {f"namespace {path.name}" for path in Path("/run/netns").glob("*")}
    found |= {f"device {path.name}" for path in Path("/sys/class/net").glob("*")}
    found |= {f"state file {path}" for path in STATE.glob("*.json") if not foreign(path)}
    pids = {int(path.name) for path in Path("/proc").glob("[0-9]*")}
    found |= {
        f"process {pid} ({proc(pid, 'cmdline')})"
        for pid in pids - {os.getpid()}
        if started_here(pid) and TRACKER not in proc(pid, "cmdline")
    }
    return found


def foreign(state: Path) -> bool:
    """Whether a state file belongs to a live testbed that someone else runs on this machine."""
    try:
        controller = json.loads(state.read_text())["controller"]["pid"]
    except (FileNotFoundError, ValueError, KeyError):
        return False
    alive = Path(f"/proc/{controller}").exists()
    return alive and controller != os.getpid() and not started_here(controller)


def started_here(pid: int) -> bool:
    """Whether this session started a process, directly or indirectly."""
    return f"{SESSION}={os.environ[SESSION]}" in proc(pid, "environ").split()


def proc(pid: int, file: str) -> str:
    """Return a file of a process in /proc, split at blanks; empty for a process that has ended."""
    try:
        return (
            Path(f"/proc/{pid}/{file}")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""
