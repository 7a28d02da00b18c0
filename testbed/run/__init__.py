"""Running a scenario: plan, fabric, workers, each transport in turn, results."""

from testbed.run.scenario import check_memory, plan_of, run_into, run_scenario

__all__ = ["check_memory", "plan_of", "run_into", "run_scenario"]
