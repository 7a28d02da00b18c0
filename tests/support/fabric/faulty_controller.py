"""A controller whose faults are in force, for tests that kill it: ``python faulty_controller.py
RUN_ID``.

Prints ``up`` when all is there, then lets faults come and go until it is killed.
"""

import sys

from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults.injector import Injector
from testbed.faults.partition import Blockade
from testbed.faults.spec import events_of, parse_fault, rules_of
from testbed.faults.timeline import Timeline
from testbed.plan import plan_fabric
from testbed.worker import Workers

FAULTS = [
    parse_fault(text)
    for text in (
        "drop p=0.1",
        "delay delay=5ms jitter=1ms",
        "link-down host=h2 at=10ms for=20ms",
        "pause host=h3 at=5ms for=50ms",
        "slow host=h1 share=0.1 at=5ms for=60ms",
        "partition sets=h1|h2 at=20ms for=20ms",
        "flood switch=s1 at=10ms for=50ms",
    )
]


def main() -> None:
    with Fabric(plan_fabric("star", 3), sys.argv[1]) as fabric, Workers(fabric) as workers:
        fabric.popen(
            "h3", ["ping", "-q", "-i", "0.002", "h1"], track="traffic", stdout=-3, stderr=-3
        )
        print("up", flush=True)
        for datapath in ("xdp", "sockets") * 1000:
            set_datapath(fabric, datapath)  # type: ignore[arg-type]
            with (
                Injector(fabric, rules_of(FAULTS), seed=1),
                Blockade(fabric) as blockade,
                Timeline(fabric, workers, events_of(FAULTS), blockade) as timeline,
            ):
                timeline.wait(0.08)


if __name__ == "__main__":
    main()
