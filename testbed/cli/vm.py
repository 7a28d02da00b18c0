"""``testbed vm``: run commands and tests on another kernel."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.host.paths import ROOT

__all__ = ["register"]

vm = typer.Typer(
    no_args_is_help=True,
    help="Run commands and tests on a Debian kernel under QEMU.",
    epilog=options.examples(
        "testbed vm setup --kernel 6.1",
        "testbed vm run -- testbed doctor",
        "testbed vm test --kernel 6.1",
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
    "tests/vm/guest",
)

Series = Annotated[
    str, typer.Option("--kernel", metavar="SERIES", help="Kernel series, such as 6.12 or 6.1.")
]
Limit = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", parser=options.REAL, help="Time limit, boot included."
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
        "testbed vm run --share runs -- testbed run scenarios/smoke.toml --out runs/vm",
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
    epilog=options.examples(
        "testbed vm test",
        "testbed vm test --kernel 6.1 -- tests/kernel/test_tc.py -x",
        after="Exit status: pytest's; 124 and 125 as for `run`.",
    ),
    context_settings={"allow_interspersed_args": False},
)
def test(
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


def _run(series: str, command: list[str], timeout: float, shares: list[Path]) -> int:
    import os

    from testbed.core.errors import SpecError
    from testbed.host.rights import require_root
    from testbed.vm import find_image, run_in_vm

    if not 1 <= timeout <= 86_400:
        raise SpecError(f"--timeout: {timeout:g}: must be 1 to 86400 seconds")
    image = find_image(series)
    require_root()
    return run_in_vm(
        image,
        command[1:] if command[0] == "--" else command,
        stdout=sys.stdout.buffer,
        stderr=sys.stderr.buffer,
        timeout=timeout,
        environment={
            name: value for name, value in os.environ.items() if name.startswith("TESTBED_")
        },
        shares=shares,
    )
