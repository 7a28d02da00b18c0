"""Running one command in a virtual machine: the host's files, read-only below an overlay in memory,
and the command's own output and exit status.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, ClassVar

from testbed.core.closing import Closing
from testbed.core.errors import SpecError
from testbed.vm.image import QEMU, KernelImage, VmError, required
from testbed.vm.initramfs import HOST_TAG, RESULTS, RESULTS_TAG, build_initramfs

__all__ = ["VmDied", "VmTimeout", "choose_accelerator", "run_in_vm"]

_KVM = Path("/dev/kvm")
_TRIAL = 20.0  # seconds in which a machine with KVM must boot: it takes 2
_POLL = 0.05  # seconds between looks at the command's output
_LAST_LINES = 12  # of the console that the error has if the machine died
_SHARE = "share"

_START = f"""# Process 1 of the virtual machine, once the host's files are mounted.
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts devpts /dev/pts
mkdir -p "/lib/modules/$(uname -r)"
mount --bind {{modules}} "/lib/modules/$(uname -r)"
ip link set lo up
{{shares}}
cd {{folder}} && env -i {{environment}} {{command}} \\
    <{os.devnull} >>{RESULTS}/stdout 2>>{RESULTS}/stderr
echo $? >{RESULTS}/status.part
mv {RESULTS}/status.part {RESULTS}/status
sync
exec busybox poweroff -f
"""


class VmTimeout(VmError):
    """The command did not end in time."""

    exit_status: ClassVar[int] = 124  # as timeout(1)


class VmDied(VmError):
    """The virtual machine ended before the command did, for example by a panic; the text has the
    end of its console.
    """

    exit_status: ClassVar[int] = 125
    before_log: ClassVar[str] = "; its last words:\n"


def choose_accelerator(image: KernelImage) -> str:
    """Try KVM with a kernel, and keep in the cache whether it works: nested KVM may exist and hang.

    :returns: ``kvm``, or ``tcg`` (translation, some 20 times slower).
    """
    image.accelerator.unlink(missing_ok=True)
    chosen = "tcg"
    if os.access(_KVM, os.R_OK | os.W_OK):
        image.accelerator.write_text("kvm", encoding="utf-8")
        with open(os.devnull, "wb") as null, suppress(VmTimeout, VmDied):
            run_in_vm(image, ["true"], stdout=null, stderr=null, timeout=_TRIAL)
            chosen = "kvm"
    image.accelerator.write_text(chosen, encoding="utf-8")
    return chosen


def run_in_vm(
    image: KernelImage,
    command: Sequence[str],
    *,
    stdout: BinaryIO,
    stderr: BinaryIO,
    timeout: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    shares: Iterable[Path] = (),
    cpus: int = 2,
    memory: int = 2 << 30,
) -> int:
    """Boot a kernel, run a command on it as root, and forward what it writes while it runs.

    The command sees the host's files; what it changes is lost at the end, except in ``shares``.

    :param timeout: Seconds, boot included.
    :param folder: Working directory; default: the current one.
    :param environment: Variables besides ``PATH`` and ``HOME``.
    :param shares: Folders that the command may write into, at the same place.
    :param memory: Bytes of memory of the machine.
    :returns: The command's exit status.
    :raises VmTimeout: It did not end in time; the machine is gone.
    :raises VmDied: The kernel panicked, or QEMU ended.
    :raises VmError: QEMU is not installed.
    """
    shares = [share.resolve() for share in shares]
    for share in shares:
        if not share.is_dir():
            raise SpecError(f"--share: {share}: must be a folder that exists")
    with ExitStack() as stack:
        results = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-vm-")))
        (results / "start").write_text(
            _START.format(
                modules=shlex.quote(str(image.modules)),
                shares="\n".join(
                    f"mount -t 9p -o trans=virtio,version=9p2000.L,cache=none {_SHARE}{index}"
                    f" {shlex.quote(str(share))}"
                    for index, share in enumerate(shares)
                ),
                folder=shlex.quote(str((folder or Path.cwd()).resolve())),
                environment=shlex.join(
                    f"{name}={value}" for name, value in _environment(environment or {}).items()
                ),
                command=shlex.join(command),
            ),
            encoding="utf-8",
        )
        outputs = [
            stack.enter_context(_Output(results / name, to))
            for name, to in (("stdout", stdout), ("stderr", stderr))
        ]
        machine = stack.enter_context(_Machine(image, results, shares, cpus, memory))
        end = time.monotonic() + timeout
        while machine.is_running(_POLL):
            for output in outputs:
                output.forward()
            if time.monotonic() > end:
                raise VmTimeout(f"the command did not end within {timeout:g} s")
        for output in outputs:
            output.forward()
        try:
            return int((results / "status").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            raise VmDied(
                f"the virtual machine (Linux {image.release}) died before the command ended"
                f"{VmDied.before_log}{machine.console()}"
            ) from None


def _environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """This process's programs come first, so that a command finds the same testbed."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "HOME": "/root", **chosen}


class _Output(Closing):
    """What the command writes into one file, forwarded to a stream of this process."""

    def __init__(self, path: Path, to: BinaryIO) -> None:
        path.touch()
        self._file = path.open("rb")
        self._to = to

    def forward(self) -> None:
        if data := self._file.read():
            self._to.write(data)
            self._to.flush()

    def close(self) -> None:
        self._file.close()


class _Machine(Closing):
    """QEMU, which ends with this object, and with this process however that ends."""

    def __init__(
        self, image: KernelImage, results: Path, shares: Sequence[Path], cpus: int, memory: int
    ) -> None:
        qemu = required(*QEMU)
        self._console = results / "console"
        kvm = image.accelerator.is_file() and image.accelerator.read_text(encoding="utf-8") == "kvm"
        command = [
            # The kernel kills QEMU when this process ends, even by SIGKILL.
            *(required("setpriv", "util-linux"), "--pdeathsig", "KILL", qemu),
            *("-machine", "q35", "-accel", "kvm" if kvm else "tcg,thread=multi"),
            *(
                "-cpu",
                "host,-arch-capabilities" if kvm else "max",
                "-smp",
                str(cpus),
                "-m",
                f"{memory >> 20}M",
            ),
            *("-nodefaults", "-no-reboot", "-display", "none", "-serial", f"file:{self._console}"),
            *("-kernel", str(image.kernel), "-initrd", str(build_initramfs(image))),
            *("-append", _KERNEL_OPTIONS),
            *_share(HOST_TAG, Path("/"), "readonly=on,multidevs=remap,"),
            *_share(RESULTS_TAG, results),
        ]
        for index, share in enumerate(shares):
            command += _share(f"{_SHARE}{index}", share, "multidevs=remap,")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def is_running(self, wait: float) -> bool:
        """Whether QEMU still runs after at most ``wait`` seconds."""
        try:
            self._process.wait(wait)
        except subprocess.TimeoutExpired:
            return True
        return False

    def console(self) -> str:
        """What QEMU and the kernel wrote, from the kernel's first word of a panic, or the end."""
        assert self._process.stderr is not None
        text = self._process.stderr.read().decode(errors="replace")
        if self._console.exists():
            text += self._console.read_text(errors="replace", encoding="utf-8")
        lines = text.splitlines()
        panic = next((at for at, line in enumerate(lines) if "Kernel panic" in line), None)
        begin = -_LAST_LINES if panic is None else panic
        return "\n".join(lines[begin:][:_LAST_LINES])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()


_KERNEL_OPTIONS = (
    "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr tsc=reliable rdinit=/init"
)
"""A panic reboots at once, which ends QEMU; without KVM, mitigations and a check of the clock take
longer than the rest of the boot.
"""


def _share(tag: str, path: Path, options: str = "") -> list[str]:
    where = str(path).replace(",", ",,")  # QEMU's way to write a comma
    return [
        *("-fsdev", f"local,id={tag},security_model=none,{options}path={where}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]
