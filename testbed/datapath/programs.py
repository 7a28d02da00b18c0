"""Users' programs on hosts' links: compiled, attached, read and detached, from the controller."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from testbed.core.closing import Closing
from testbed.core.errors import SpecError
from testbed.core.numbers import shown
from testbed.datapath import napi, user_program
from testbed.datapath.contents import Contents
from testbed.datapath.user_program import Hook, Order
from testbed.kernel import Map
from testbed.kernel.compile import compile_file
from testbed.kernel.object import Entry, programs_of
from testbed.plan import MAX_LINEAR_MTU
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.fabric.nodes import Host

__all__ = ["HOOKS", "Attached", "Compiled", "attach", "check_frames", "compile_program", "of_host"]

HOOKS: tuple[str, ...] = get_args(Hook)
_NUMBERS = itertools.count(1)
_XDP, _BPF_XDP, _CLASSIFIER, _ACTION = 6, 37, 3, 4  # enum bpf_prog_type and bpf_attach_type


@dataclass(frozen=True)
class Compiled:
    """A user's program, compiled for a hook.

    :param source: Its file.
    :param path: The object.
    :param function: Its name there.
    """

    source: Path
    path: Path
    function: str
    hook: Hook


def compile_program(file: str | Path, hook: str = "xdp", section: str | None = None) -> Compiled:
    """Compile a program, or find it in the cache.

    :param section: Section or function of the program; None: the file has one that fits the hook.
    :raises SpecError: There is no such file, hook or program.
    :raises KernelError: The compiler's message.
    """
    source = Path(file)
    if hook not in HOOKS:
        raise SpecError(f"hook: {shown(hook)}: must be one of {', '.join(HOOKS)}")
    if not source.is_file():
        raise SpecError(f"program {source}: there is no such file")
    path = compile_file(source)
    wanted = "xdp" if hook in ("xdp", "xdp-generic") else "tc"
    found = programs_of(path)
    fitting = {name: entry for name, entry in found.items() if _fits(entry, wanted)}
    if section is not None:
        fitting = {k: entry for k, entry in fitting.items() if section in (k, entry.section)}
    if len(fitting) != 1:
        there = ", ".join(f"{name} ({entry.section})" for name, entry in found.items()) or "none"
        named = f"in section {section!r} " if section else ""
        many = "has no program" if not fitting else "has several programs"
        hint = "; name one by its section or function"
        hint = hint if fitting else f", whose sections begin with {wanted}"
        raise SpecError(f"program {source}: {many} {named}for hook {hook}{hint}: it has {there}")
    (function,) = fitting
    return Compiled(source, path, function, hook)  # type: ignore[arg-type]  # checked above


def _fits(entry: Entry, wanted: str) -> bool:
    if wanted == "tc":
        return entry.kind in (_CLASSIFIER, _ACTION)
    return (entry.kind, entry.place) == (_XDP, _BPF_XDP)  # no program of a devmap or cpumap


def check_frames(program: Compiled, mtu: int) -> None:
    """Refuse a program that would see only the beginning of each long frame, as the kernel does for
    a device that has no other program.

    :raises SpecError: The program is to run in the driver, and takes no frames in pieces.
    """
    if program.hook != "xdp" or mtu <= MAX_LINEAR_MTU:
        return
    section = programs_of(program.path)[program.function].section
    if ".frags" not in section:
        raise SpecError(
            f"program {program.source}: section {section!r}: with an MTU of {mtu}, above"
            f" {MAX_LINEAR_MTU}, frames come in pieces, of which it would see the first: must be"
            " 'xdp.frags' (bpf_xdp_load_bytes reads the rest), or the hook xdp-generic"
        )


class Attached(Closing):
    """A program on a host's link, until it is closed; by then, it ends with its worker."""

    def __init__(self, fabric: Fabric, host: str, program: Compiled, order: Order) -> None:
        self.host, self.program, self.number = host, program, order.number
        self._fabric = weakref.ref(fabric)
        plan = fabric.plan.host(host)
        self._port = plan.switch, plan.port
        self._bounces = program.hook == "xdp"
        self._open = True
        workers = Workers.of(fabric)
        with ExitStack() as stack:
            if self._bounces:
                fabric.count_programs(1)
                stack.callback(fabric.count_programs, -1)
                workers[plan.switch].call(napi.give, port=plan.port)
                stack.callback(workers[plan.switch].call, napi.take_back, port=plan.port)
            numbers = workers[host].call(user_program.attach, order=order)
            stack.pop_all()
        #: Its maps by name; global variables are in ``.bss``, ``.data`` and ``.rodata``.
        self.maps: dict[str, Map] = {name: Map.open(number) for name, number in numbers.items()}
        self._contents = Contents(program.source, program.path, self.maps)
        self._descriptors = weakref.finalize(
            self, _close_all, [found.fd for found in self.maps.values()]
        )

    @property
    def names(self) -> list[str]:
        """What `read` can be asked for: global variables and maps."""
        return self._contents.names

    def read(self, name: str) -> Any:
        """Return the value of a global variable, or a map's entries as a dictionary.

        Integers are Python's, structs and arrays numpy's, by the program's own types; keys that are
        structs are tuples, and octets bytes, as is what has no type. Of a per-CPU map, integers are
        summed over CPUs, and other values are arrays with one entry per CPU. Of a map of programs
        or maps, values are the kernel's numbers of them.

        :raises KeyError: The program has neither.
        :raises KernelError: It is of a kind that cannot be read, such as a ring buffer.
        """
        return self._contents.read(name)

    def values(self) -> dict[str, Any]:
        """Return all that `read` can read, by name, as JSON can hold it."""
        return self.contents()[0]

    def contents(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return `values`, and for what cannot be read the reason, by name."""
        return self._contents.all()

    def close(self) -> None:
        """Detach and unload; does nothing if that is done, or the fabric is gone."""
        if not self._open:
            return
        self._descriptors()
        fabric = self._fabric()
        if fabric is not None and (workers := Workers.find(fabric)):
            if not workers[self.host].may_die:
                workers[self.host].call(user_program.detach, number=self.number)
            if self._bounces:
                switch, port = self._port
                workers[switch].call(napi.take_back, port=port)
                fabric.count_programs(-1)
        self._open = False


def attach(
    fabric: Fabric,
    host: str,
    program: Compiled,
    first: bool = True,
    rodata: Mapping[str, Any] | None = None,
    maps: Mapping[str, int | Map] | None = None,
) -> Attached:
    """Attach a program to a host's link (``eth0``).

    :param first: Before what is attached already, the testbed's programs among it; otherwise after
        it, on the frames that it passes.
    :param rodata: Values of its constants and other initialized variables, by name.
    :param maps: Numbers of entries of its maps, or maps of other programs to use instead, by name.
    :raises SpecError: There is no such host, or its link has frames that are too long.
    :raises KernelError: The kernel refused it; the text has what libbpf and the verifier say, or
        who holds the device.
    """
    fabric.plan.host(host)
    check_frames(program, fabric.plan.mtu)
    given = maps or {}
    order = Order(
        next(_NUMBERS),
        program.path,
        program.function,
        program.hook,
        first,
        dict(rodata or {}),
        {name: value for name, value in given.items() if isinstance(value, int)},
        {name: value.number for name, value in given.items() if not isinstance(value, int)},
    )
    return Attached(fabric, host, program, order)


def of_host(
    host: Host,
    file: str | Path,
    hook: str = "xdp",
    section: str | None = None,
    order: str = "first",
    rodata: Mapping[str, Any] | None = None,
    maps: Mapping[str, int | Map] | None = None,
) -> Attached:
    """See `testbed.fabric.nodes.Host.attach`."""
    if order not in ("first", "last"):
        raise SpecError(f"order: {shown(order)}: must be first or last")
    program = compile_program(file, hook, section)
    return attach(host.fabric, host.name, program, order == "first", rodata, maps)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
