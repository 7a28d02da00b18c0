"""Running a scenario: plan, fabric, workers, each transport in turn, results."""

from testbed.run.scenario import kept_results, plan_of, run_scenario

__all__ = ["kept_results", "plan_of", "run_scenario"]
