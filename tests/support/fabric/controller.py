"""A controller in a process of its own, for tests that end it: ``python controller.py RUN_ID
[HOSTS]``.

Prints ``up`` when all is there, then waits; stays alive until a signal ends it or a worker dies.
"""

import sys

from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.worker import Workers


def main() -> None:
    with (
        Fabric(plan_fabric("star", 2, "bridge"), sys.argv[1]) as fabric,
        Workers(fabric) as workers,
    ):
        fabric.popen(
            "h1", ["sh", "-c", "sleep 1000 & exec sleep 1001"], track="a user's command", stdout=-3
        )
        print("up", flush=True)
        workers.check(timeout=None)


if __name__ == "__main__":
    main()
