"""``testbed vm``: run commands and tests on another kernel."""

import dataclasses
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from testbed.cli import options
from testbed.core.numbers import Real
from testbed.host.paths import ROOT

__all__ = ["register"]

vm = typer.Typer(
    no_args_is_help=True,
    help="Run commands and tests on a Debian kernel under QEMU.",
    epilog=options.examples(
        "testbed vm setup --kernel 6.1",
        "testbed vm run -- testbed doctor",
        "testbed vm test --kernel 6.1",
        "testbed vm doctor",
        after=(
            "`make vm` installs QEMU. Exit status of `run`: the command's; 124 if it did not end in"
            " time; 125 if the virtual machine died."
        ),
    ),
)

GUEST_TESTS = (
    "tests/kernel/test_layer.py",
    "tests/kernel/test_dispatch.py",
    "tests/kernel/test_tc.py",
    "tests/vm/guest/test_network.py",
)

Series = Annotated[
    str, typer.Option("--kernel", metavar="SERIES", help="Kernel series, such as 6.12 or 6.1.")
]
Limit = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        parser=options.number(Real(1, 86_400)),
        help="Time limit, boot included; 1 to 86400.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(vm, name="vm")


@vm.callback()
def group() -> None:
    """Run commands and tests on a Debian kernel under QEMU."""


@vm.command(epilog=options.examples("testbed vm setup", "testbed vm setup --kernel 6.1"))
def setup(kernel: Series = "6.12", verbose: options.Verbose = 0) -> None:
    """Download and unpack a kernel; nothing is installed.

    It goes to ~/.cache/testbed/kernels. With KVM virtual machines run at full speed; without, some
    20 times slower.
    """
    from testbed.vm.image import fetch_image
    from testbed.vm.initramfs import build_initramfs
    from testbed.vm.qemu import choose_accelerator

    image = fetch_image(kernel, lambda text: typer.echo(f"# {text}", err=True))
    build_initramfs(image)
    how = choose_accelerator(image)
    typer.echo(f"Linux {image.release} (QEMU with {how.upper()}): {image.root}")


@vm.command(
    epilog=options.examples(
        "testbed vm run -- uname -r",
        "testbed vm run --kernel 6.1 --timeout 60 -- testbed doctor",
        "testbed vm run --share runs -- testbed run scenarios/ddp_synthetic.toml --out runs/vm",
        after=(
            "Exit status: the command's; 124 if it did not end in time; 125 if the machine died."
        ),
    ),
    # Everything after the command's name belongs to it, even options.
    context_settings={"allow_interspersed_args": False},
)
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Program and arguments.")
    ],
    kernel: Series = "6.12",
    timeout: Limit = 600,
    share: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", file_okay=False, help="A folder that the command may write into."
        ),
    ] = None,
    verbose: options.Verbose = 0,
) -> None:
    """Run a command as root in a virtual machine that sees this machine's files.

    What the command writes is lost at the end, except in the folders given by --share.
    """
    raise typer.Exit(_run(kernel, command, timeout, share or []))


@vm.command(
    "test",
    epilog=options.examples(
        "testbed vm test",
        "testbed vm test --kernel 6.1 -- tests/kernel/test_tc.py -x",
        after="Exit status: pytest's; 124 and 125 as for `run`.",
    ),
    context_settings={"allow_interspersed_args": False},
)
def run_tests(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[PYTEST...]", help="Arguments of pytest.")
    ] = None,
    kernel: Series = "6.12",
    timeout: Limit = 600,
    verbose: options.Verbose = 0,
) -> None:
    """Run tests of a checkout in a virtual machine.

    Without arguments, these are tests of each kind that take little time: of libbpf and TC, of
    programs packet by packet, and of whole networks, with losses made by netem, too.
    """
    from testbed.core.errors import SpecError

    if missing := [name for name in GUEST_TESTS if not (ROOT / name).exists()]:
        raise SpecError(f"tests run in a checkout only: {ROOT} has no {missing[0]}")
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    chosen = arguments or [str(ROOT / name) for name in GUEST_TESTS]
    raise typer.Exit(_run(kernel, [*pytest, *chosen], timeout, []))


@vm.command(epilog=options.examples("testbed vm doctor", "testbed vm doctor --json >kernels.json"))
def doctor(
    timeout: Limit = 3600,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """Say what this machine's kernel can do, and what those can that are set up, as a Markdown
    table.

    Below it, each kernel's words for what it cannot do. Without KVM each takes minutes, and its
    probes have as long as they need.
    """
    import io
    from json import loads

    from testbed.probes import findings
    from testbed.vm import SERIES, VmError, find_image

    doctor = [sys.executable, "-c", "from testbed.cli import main; main()", "doctor"]
    command = [*doctor, "--json", "--timeout", f"{timeout:g}"]
    found = {platform.release(): [dataclasses.asdict(finding) for finding in findings()]}
    for series in SERIES:
        typer.echo(f"# trying what Linux {series} can do", err=True)
        printed, said = io.BytesIO(), io.BytesIO()
        _run(series, command, timeout, [], printed, said)
        try:
            told = loads(printed.getvalue())["findings"]
        except ValueError:
            raise VmError(
                f"testbed doctor failed on Linux {series}: {said.getvalue().decode()[-300:]}"
            ) from None
        found[find_image(series).release] = told
    results = options.Results(json, out)
    for line in kernel_table(found):
        results.say(line)
    results.write(found)


def kernel_table(found: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterator[str]:
    """The findings of each kernel, by its release: lines of a Markdown table, and of a list of what
    is missing.
    """
    names = dict.fromkeys(finding["name"] for each in found.values() for finding in each)
    levels = {
        release: {finding["name"]: finding["level"] for finding in each}
        for release, each in found.items()
    }
    yield f"| capability | {' | '.join(found)} |"
    yield f"| --- |{' --- |' * len(found)}"
    for name in names:
        yield f"| {name} | {' | '.join(each.get(name, '') for each in levels.values())} |"
    yield ""
    for release, each in found.items():
        for finding in each:
            if finding["level"] != "OK":
                yield f"- {release}, {finding['name']}: {finding['detail']}"


def _run(
    series: str,
    command: list[str],
    timeout: float,
    shares: list[Path],
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> int:
    from testbed.host.rights import require_root
    from testbed.vm import find_image, run_in_vm

    image = find_image(series)
    require_root()
    return run_in_vm(
        image,
        command[1:] if command[0] == "--" else command,
        stdout=stdout or sys.stdout.buffer,
        stderr=stderr or sys.stderr.buffer,
        timeout=timeout,
        environment={
            name: value for name, value in os.environ.items() if name.startswith("TESTBED_")
        },
        shares=shares,
    )
