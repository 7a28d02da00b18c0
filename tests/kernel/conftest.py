"""Fixtures for test runs of programs."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_cpu() -> Iterator[None]:
    """Pin tests to one CPU, so that programs find their per-CPU data again in the next test run.

    Workers of pytest-xdist are spread over the CPUs.
    """
    allowed = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(allowed)[worker % len(allowed)]})
    yield
    os.sched_setaffinity(0, allowed)
