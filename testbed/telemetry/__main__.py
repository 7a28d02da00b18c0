"""``python -m testbed.telemetry``: the process that loads the program and reads it.

Orders are lines of JSON on standard input, and so are the answers on standard output. It ends when
its input does.
"""

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from testbed.core.errors import TestbedError
from testbed.telemetry.recording import Recording
from testbed.telemetry.sampler import Sampler
from testbed.worker.serve import die_with_parent

_EVERY = 2.0  # seconds between two readings of the samples; their buffer holds those of ten


def main() -> None:
    """Serve the orders ``start``, ``stop`` and ``take``."""
    parser = argparse.ArgumentParser(prog="python -m testbed.telemetry", description=__doc__)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--nodes", type=json.loads, required=True, help="netns inodes by name")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    nodes = {inode: name for name, inode in arguments.nodes.items()}
    with ExitStack() as stack:
        answers = stack.enter_context(os.fdopen(os.dup(1), "w", encoding="utf-8"))
        os.dup2(2, 1)  # what the compiler prints is no answer
        try:
            sampler = stack.enter_context(Sampler(list(nodes), arguments.rate))
            service = Service(Recording(sampler, nodes, arguments.rate), sampler)
        except TestbedError as error:
            print(json.dumps({"error": str(error).splitlines()[0]}), file=answers, flush=True)
            return
        print("{}", file=answers, flush=True)
        for answer in service.run():
            print(json.dumps(answer), file=answers, flush=True)


class Service:
    """Carries out orders, and reads samples between them."""

    def __init__(self, recording: Recording, sampler: Sampler) -> None:
        self._recording, self._sampler = recording, sampler

    def run(self) -> Iterator[dict[str, Any]]:
        """Yield an answer to each order, until the end of the input."""
        with ExitStack() as stack:
            while True:
                ready, _, _ = select.select([sys.stdin], [], [], _EVERY)
                if not ready:
                    self._recording.drain()
                elif line := sys.stdin.readline():
                    yield self._carry_out(json.loads(line), stack)
                else:
                    return

    def _carry_out(self, order: dict[str, Any], stack: ExitStack) -> dict[str, Any]:
        match order["order"]:
            case "start":
                stack.enter_context(self._sampler.on(order["mode"]))
                self._recording.start()
                return {}
            case "stop":
                stack.close()
                return {}
        profile, stacks = self._recording.take(order["windows"])
        return {"profile": profile.to_dict(), "stacks": [list(stack) for stack in stacks]}


if __name__ == "__main__":
    main()
