"""Fixtures for test runs of programs."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_cpu() -> Iterator[None]:
    """Pin tests to one CPU, so that programs find their per-CPU data again in the next test run."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)
