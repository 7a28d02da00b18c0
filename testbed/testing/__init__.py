"""Fault tests in ten lines: fixtures for pytest (``plugin``), and what a test asserts. Described in ``docs/testing.md``."""

from testbed.testing.assertions import WrongSum, assert_exact, assert_faults_fired
from testbed.testing.pairwise import pairwise
from testbed.testing.reference import exact_sum

__all__ = ["WrongSum", "assert_exact", "assert_faults_fired", "exact_sum", "pairwise"]
