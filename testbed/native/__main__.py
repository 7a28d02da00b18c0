"""Compile all native libraries: ``python -m testbed.native``."""

from testbed.native import compile_native, names

for _name in names():
    print(compile_native(_name))
