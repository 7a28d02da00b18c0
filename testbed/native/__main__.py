"""Compile all native libraries: ``python -m testbed.native``."""

from testbed.native import compile_all

for path in compile_all():
    print(path)
