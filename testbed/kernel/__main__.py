"""``python -m testbed.kernel``: compile every BPF program."""

import sys

from testbed.core.errors import KernelError
from testbed.kernel.compile import compile_all

if __name__ == "__main__":
    try:
        compile_all()
    except KernelError as error:
        sys.exit(f"error: {error}")
