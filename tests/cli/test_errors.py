"""How the command fails: with exact texts and exit statuses, without a traceback."""

import errno
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest import mock

import pytest

from testbed.cli import app
from testbed.core.errors import limit_reached
from testbed.host.rights import add_system_tools
from tests.support.command import call_testbed
from tests.support.tiers import broad

PROGRAM = [sys.executable, "-c"]
# A verb that ends as the test wants, registered next to the real ones.
VERB = """
import signal, sys, typer
from testbed.core import errors
from testbed import cli
@cli.app.command()
def act(verbose: cli.options.Verbose = 0) -> None:
    {action}
"""


def run(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}
    return subprocess.run(
        [*PROGRAM, source, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def invoke(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("from testbed.cli import main; main()", *arguments)


def verb(action: str) -> str:
    return VERB.format(action=textwrap.indent(textwrap.dedent(action), "    ").strip())


def act(action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the verb in this process."""
    with mock.patch.object(app, "registered_commands", list(app.registered_commands)):
        exec(verb(action), {})
        return call_testbed("act", *arguments)


def act_alone(action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the verb in a process of its own, whose end is what is tested."""
    return run(verb(action) + "cli.main()", "act", *arguments)


def test_a_dash_is_standard_output_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call_testbed("dissector", "-o", "-").stdout == call_testbed("dissector").stdout
    done = call_testbed("list", "-o", "-")
    assert done.returncode == 2
    assert "'-' is not standard output here: must be the name of a file" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "status"),
    broad(
        [
            ("TestbedError", 1),
            ("SpecError", 2),
            ("StorageError", 1),
            ("KernelError", 1),
            ("FabricError", 1),
            ("CollectiveError", 1),
        ],
        2,
    ),
)
def test_testbed_error_is_one_line(error: str, status: int) -> None:
    done = act(f"print('half'); raise errors.{error}('hosts: 0 is not allowed: 1 to 32')")
    assert done.stderr == "error: hosts: 0 is not allowed: 1 to 32\n"
    assert done.stdout == "half\n"
    assert done.returncode == status


def test_each_finding_is_an_error_and_a_log_is_not() -> None:
    done = act(
        "raise errors.SpecError('hosts = 0: must be 1 to 32\\nmtu = 1: must be 576 to 9000')"
    )
    assert done.stderr == "error: hosts = 0: must be 1 to 32\nerror: mtu = 1: must be 576 to 9000\n"
    done = act("raise errors.WorkerDied('h2', 1, 'first\\nlast')")
    assert (
        done.stderr
        == "error: worker h2 exited with 1 before its work was done; its last words:\nfirst\nlast\n"
    )


def test_further_information_precedes_the_log() -> None:
    done = act(
        "e = errors.WorkerDied('h2', -9, 'first\\nlast'); e.also('x killed it'); e.also('more is in"
        " r2'); raise e"
    )
    head = (
        "error: worker h2 was killed by signal 9 before its work was done; x killed it; more is"
        " in r2"
    )
    assert done.stderr == f"{head}; its last words:\nfirst\nlast\n"
    done = act("e = errors.KernelError('no\\nlog'); e.also('more is in r2'); raise e")
    assert done.stderr == "error: no; more is in r2\nlog\n"


def test_bug_keeps_its_traceback() -> None:
    done = act_alone("raise ZeroDivisionError('a bug')")
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: a bug\n")
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_unwinds_and_says_nothing(number: signal.Signals) -> None:
    done = act_alone(f"""
        try:
            signal.raise_signal({int(number)})
        finally:
            print("closed")
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("closed\n", "", 128 + number)


def test_verbose_before_and_after_the_verb() -> None:
    action = "import logging; logging.getLogger('testbed.x').info('made %d hosts', 4)"
    source = verb(action) + "cli.main()"
    assert "made 4 hosts" not in run(source, "act").stderr
    assert "testbed.x: made 4 hosts" in run(source, "-v", "act").stderr
    assert "testbed.x: made 4 hosts" in run(source, "act", "-v").stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "No such command 'nonsense'; see testbed --help"),
        (["doctor", "--nonsense"], "No such option: --nonsense; see testbed doctor --help"),
        (
            ["doctor", "extra"],
            "Got unexpected extra argument(s) (extra); see testbed doctor --help",
        ),
        (["exec"], "Missing argument 'HOST'; see testbed exec --help"),
        (
            ["bench", "allreduce", "--out", "/proc/self/none/out.json"],
            (
                "Invalid value for '--out' / '-o': /proc/self/none/out.json: the folder"
                " /proc/self/none does not exist; must be a file in an existing folder; see"
                " testbed bench allreduce --help"
            ),
        ),
    ],
)
def test_usage_is_one_line(arguments: list[str], text: str) -> None:
    done = call_testbed(*arguments)
    assert (done.stdout, done.stderr, done.returncode) == ("", f"error: {text}\n", 2)


def test_no_verb_shows_help() -> None:
    done = invoke()
    assert "Usage: testbed" in done.stdout
    assert (done.stderr, done.returncode) == ("", 2)


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_bug(closed: int) -> None:
    """As after ``testbed bogus 2>&-``: nobody hears the error, but the status tells."""
    words = [*PROGRAM, "from testbed.cli import main; main()", "bogus"]
    shell = f"{shlex.join(words)} {closed}>&-"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (done.stdout, done.stderr == "") == ("", closed == 2)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("utf-8", "2\N{MULTIPLICATION SIGN} 2\N{MINUS SIGN}"), ("latin-1", "2\xd7 2?")],
)
def test_text_that_a_stream_cannot_write_is_replaced(encoding: str, said: str) -> None:
    source = verb("print('2\\xd7 2\\u2212')") + "cli.main()"
    done = subprocess.run(
        [*PROGRAM, source, "act"],
        capture_output=True,
        encoding=encoding,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert (done.stdout, done.stderr) == (f"{said}\n", "")


def test_tools_are_looked_for_where_root_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/sbin")
    add_system_tools()
    add_system_tools()
    assert os.environ["PATH"] == "/usr/bin:/sbin:/usr/local/sbin:/usr/sbin"


def test_a_full_disk_is_one_line() -> None:
    done = act("raise OSError(28, 'No space', '/run/testbed/x.json')")
    assert (done.stderr, done.returncode) == (
        "error: /run/testbed/x.json: cannot be written: No space left on device\n",
        1,
    )
    done = act("import pathlib; cli.options.Results(False, pathlib.Path('/dev/full')).write({})")
    assert (done.stderr, done.returncode) == (
        "error: --out /dev/full: cannot be written: No space left on device\n",
        1,
    )


LIMITS = {
    "bytes(1 << 60)": "out of memory",
    "import os; [os.open('/', 0) for _ in range(1 << 17)]": "too many open files: ulimit",
    "import numpy; numpy.empty(1 << 50)": (
        "out of memory: Unable to allocate 8.00 PiB for an array with shape "
    ),
    "import torch; torch.empty(1 << 50)": (
        "out of memory: you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot "
        "allocate memory)"
    ),
    "import pyarrow; pyarrow.allocate_buffer(1 << 50)": "out of memory: ",
    "import mmap; mmap.mmap(-1, 1 << 60)": "out of memory",
    "import json; json.loads('[' * 100000)": "nested too deeply: maximum recursion depth exceeded",
    "range(1 << 100).__len__()": (
        "a number is too large: Python int too large to convert to C ssize_t"
    ),
}


@pytest.mark.parametrize(("action", "text"), broad(LIMITS.items(), 3), ids=LIMITS)
def test_a_limit_is_one_line(action: str, text: str) -> None:
    done = act_alone(action)
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith(f"error: {text}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", [ImportError, OSError])
def test_a_library_that_cannot_be_opened_for_too_many_files_is_one_line(kind: type) -> None:
    """As the dynamic linker says it."""
    why = os.strerror(errno.EMFILE)
    found = limit_reached(kind(f"libx.so.1: cannot open shared object file: {why}"))
    assert found
    assert found.startswith("too many open files: ulimit -n allows ")
    assert limit_reached(kind("libx.so.1: cannot open shared object file: no such file")) is None


def test_an_error_of_the_users_code_is_one_line_and_its_own_frames(tmp_path: Path) -> None:
    """Wherever that is called; a bug of the testbed has a traceback."""
    (tmp_path / "mine.py").write_text("import json\ndef read(text):\n    return json.loads(text)\n")
    call = f"import sys; sys.path.append({str(tmp_path)!r}); import mine; mine.read('{{')"
    done = act_alone(call)
    head, *frames = done.stderr.splitlines()
    assert head.startswith("error: JSONDecodeError: Expecting property name")
    place = f'  File "{tmp_path / "mine.py"}", line 3, in read'
    assert frames[:2] == [place, "    return json.loads(text)"]
    assert not [line for line in frames[1:] if line.startswith("  File ")]
    assert "Traceback (most recent call last)" in act_alone(call, "-v").stderr
    assert "Traceback (most recent call last)" in act_alone("[][1]").stderr


def test_a_limit_has_a_traceback_when_asked() -> None:
    assert "Traceback" in act_alone("bytes(1 << 60)", "-vv").stderr


@pytest.mark.deep
def test_a_failed_allocation_is_one_line(tmp_path: Path) -> None:
    """Real allocations, by a command with little memory."""
    (tmp_path / "s.toml").write_text(
        '[scenario]\nname = "s"\n[dataset]\nname = "synthetic"\nscale = 18\nfeature_dim = 4096\n'
    )
    source = f"""
import resource, sys
from testbed.host import estimates
from testbed.host import rights
from testbed.cli import main
import testbed.run, analysis.report, torch  # libraries are mapped before the limit counts
estimates.allowance = lambda: 1 << 60  # an estimate that is wrong
rights.require_root = lambda: None
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), resource.RLIM_INFINITY))
sys.argv = ["testbed", "run", {str(tmp_path / "s.toml")!r}, "--out", {str(tmp_path / "out")!r}]
main()
"""
    done = run(source)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "error: out of memory: Unable to allocate 4.00 GiB for an array with shape "
    )
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_benches_have_examples() -> None:
    shown = " ".join(call_testbed("bench", "--help").stdout.split())
    assert "testbed bench allreduce --hosts 4 -b 64K -e 64M -f 4" in shown
    assert "testbed bench faults --loss 0.1,1,5 --size 1M" in shown


def test_version() -> None:
    assert invoke("--version").stdout == "testbed 0.1.0\n"


def test_help_names_every_verb_and_imports_nothing_heavy() -> None:
    source = """
import sys
from testbed import cli
try:
    cli.main()
except SystemExit:
    print("heavy:", sorted({"torch", "pandas", "mininet", "numpy", "matplotlib"} & sys.modules.keys()))
"""  # noqa: E501
    done = run(source, "--help")
    assert "heavy: []" in done.stdout
    shown = {word for line in done.stdout.splitlines() for word in line.strip("│ ").split()[:1]}
    from testbed.cli import VERBS

    assert set(VERBS) <= shown


MAIN = "from testbed.cli import main; main()"


def test_a_folder_that_has_been_removed_is_no_bug(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    call = shlex.join([sys.executable, "-c", MAIN, "--version"])
    words = f"mkdir {gone} && cd {gone} && rmdir {gone} && exec {call}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    answer = subprocess.run(
        ["sh", "-c", words], capture_output=True, text=True, check=False, env=environment
    )
    assert (answer.returncode, answer.stderr) == (0, "")
