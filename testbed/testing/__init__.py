"""Fault tests in ten lines: fixtures for pytest (``plugin``), and assertions. Described in
``docs/testing.md``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.testing.assertions import WrongSum, assert_exact, assert_faults_fired
    from testbed.testing.pairwise import pairwise
    from testbed.testing.reference import exact_sum

__all__ = ["WrongSum", "assert_exact", "assert_faults_fired", "exact_sum", "pairwise"]

_HOMES = {"pairwise": "pairwise", "exact_sum": "reference"}


def __getattr__(name: str) -> object:
    """Import names on first use: pytest imports this package with the plugin, even if nothing of it
    is used.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'assertions')}"), name)
    globals()[name] = found  # instead of a module with that name
    return found
