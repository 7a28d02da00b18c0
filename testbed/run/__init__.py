"""Running a scenario: plan, fabric, workers, each transport in turn, results."""

from testbed.run.scenario import run_scenario

__all__ = ["run_scenario"]
