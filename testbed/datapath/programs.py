"""Users' programs on hosts' links: compiled, attached, read and detached, from the controller."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from testbed.core.closing import Closing
from testbed.core.errors import KernelError, SpecError
from testbed.core.numbers import shown
from testbed.datapath import napi, user_program
from testbed.datapath.user_program import Hook, Order
from testbed.kernel import Map
from testbed.kernel.btf import Btf
from testbed.kernel.compile import compile_file
from testbed.kernel.object import programs_of, variables
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.fabric.nodes import Host

__all__ = ["HOOKS", "Attached", "Compiled", "attach", "compile_program", "of_host"]

HOOKS: tuple[str, ...] = get_args(Hook)
_NUMBERS = itertools.count(1)
_SECTIONS = {"xdp": ("xdp",), "tc": ("tc", "tcx", "classifier", "action")}


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
    kinds = _SECTIONS[hook.partition("-")[0]]
    found = programs_of(path)
    fitting = {
        name: where
        for name, where in found.items()
        if where.partition("/")[0].partition(".")[0] in kinds
    }
    if section is not None:
        fitting = {name: where for name, where in fitting.items() if section in (name, where)}
    if len(fitting) != 1:
        there = ", ".join(f"{name} ({where})" for name, where in found.items()) or "none"
        wanted = f"in section {section!r} " if section else ""
        many = "has no program" if not fitting else "has several programs"
        hint = "; name one by its section" if fitting else f", whose sections begin with {kinds[0]}"
        raise SpecError(f"program {source}: {many} {wanted}for hook {hook}{hint}: it has {there}")
    (function,) = fitting
    if kinds == _SECTIONS["xdp"]:
        path = compile_file(source, function)
    return Compiled(source, path, function, hook)  # type: ignore[arg-type]  # checked above


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
        self.maps: dict[str, Map] = {}
        for name, number in numbers.items():
            if name != "testbed_behind":
                self.maps[name] = Map.open(number)
        self._descriptors = weakref.finalize(
            self, _close_all, [found.fd for found in self.maps.values()]
        )

    @property
    def names(self) -> list[str]:
        """What `read` can read: global variables and maps."""
        inner = {each.section for each in variables(self.program.path)} | {".rodata", ".maps"}
        own = [each.name for each in variables(self.program.path)]
        return [*own, *(name for name in self.maps if name not in inner)]

    def read(self, name: str) -> Any:
        """Return the value of a global variable, or a map's entries as a dictionary.

        Integers are Python's, structs and arrays numpy's, by the program's own types. Of a per-CPU
        map, integers are summed over CPUs, and other values are arrays with one entry per CPU.

        :raises KeyError: The program has neither.
        """
        types = Btf.of(self.program.path)
        for each in variables(self.program.path):
            if each.name == name:
                data = self.maps[each.section].lookup(0)
                return _plain(np.frombuffer(data, types.variable(name), 1, each.offset)[0])
        if name not in self.maps:
            raise KeyError(f"{self.program.source} has no {name}: it has {', '.join(self.names)}")
        found, kinds = self.maps[name], types.map_types(name)
        return dict(_entries(found, *(kinds or (None, None))))

    def values(self) -> dict[str, Any]:
        """Return all that `read` can read and JSON can hold, by name; of maps, whole numbers."""
        found: dict[str, Any] = {}
        for name in self.names:
            value = self.read(name)
            if isinstance(value, dict):
                found[name] = {str(k): v for k, v in value.items() if isinstance(v, int | float)}
            elif isinstance(value, int | float):
                found[name] = value
        return found

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
    :raises SpecError: There is no such host.
    :raises KernelError: The kernel refused it; the text has the verifier's log, or who holds the
        device.
    """
    fabric.plan.host(host)
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


def _entries(found: Map, key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    for each in list(found.keys()):
        try:
            data = found.lookup(each)
        except (KeyError, KernelError):  # removed meanwhile, or of a kind that cannot be read
            continue
        name = each if key is None else _plain(np.frombuffer(each, key, 1)[0])
        if isinstance(name, np.ndarray | np.void):
            name = name.tobytes() if isinstance(name, np.ndarray) else tuple(name.tolist())
        if value is None:
            yield name, data
        elif found.per_cpu:
            step = found.stride
            values = np.array(
                [np.frombuffer(data, value, 1, at)[0] for at in range(0, len(data), step)]
            )
            yield name, int(values.sum()) if values.dtype.kind in "iu" else values
        else:
            yield name, _plain(np.frombuffer(data, value, 1)[0])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) and value.dtype.names is None else value
