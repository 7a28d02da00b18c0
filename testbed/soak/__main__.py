"""A controller to be killed: ``python -m testbed.soak SEED NUMBER RUN_ID`` plays a scenario over
and over.
"""

import sys

from testbed.soak.draw import draw
from testbed.soak.harness import Harness


def main(seed: int, number: int, run_id: str) -> None:
    """Play until killed."""
    scenario = draw(seed, number)
    with Harness(scenario.shape, run_id, [scenario.backend]) as harness:
        while True:
            harness.play(scenario)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
