"""``python -m testbed.worker --connect PATH --name NAME``: a worker, in the namespaces in which it
is started.
"""

import argparse
import faulthandler
from pathlib import Path

from testbed.worker.serve import serve


def main() -> None:
    """Run one worker."""
    parser = argparse.ArgumentParser(prog="python -m testbed.worker", description=__doc__)
    parser.add_argument(
        "--connect", type=Path, required=True, metavar="PATH", help="the controller's socket"
    )
    parser.add_argument("--name", required=True, help="name that the controller expects")
    arguments = parser.parse_args()
    faulthandler.enable()  # a crash inside a C library leaves its Python stack in the log
    serve(arguments.connect, arguments.name)


if __name__ == "__main__":
    main()
