"""Running a scenario: plan, fabric, workers, each transport in turn, results."""

from testbed.run.scenario import plan_of, run_into, run_scenario

__all__ = ["plan_of", "run_into", "run_scenario"]
