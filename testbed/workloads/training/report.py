"""Texts of reports on training."""

from testbed.results import Run

__all__ = ["gradient"]


def gradient(run: Run, every: str) -> str:
    """Say how much is summed."""
    parameters, size = run.manifest["parameters"], run.manifest["gradient_bytes"]
    return f"a gradient of {parameters:,} float32 ({size / 1e6:.2f} MB) summed every {every}"
