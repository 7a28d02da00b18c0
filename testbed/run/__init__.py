"""Running a scenario: plan, fabric, workers, each backend in turn, results."""

from testbed.run.runner import check, run_into, run_scenario

__all__ = ["check", "run_into", "run_scenario"]
