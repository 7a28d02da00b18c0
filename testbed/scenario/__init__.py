"""Scenario files: reading them, and reporting the errors in them. `testbed.workloads` defines what
they may contain.
"""

from testbed.scenario.load import load_scenario, parse_scenario, read_table
from testbed.workloads.scenario import Scenario

__all__ = ["Scenario", "load_scenario", "parse_scenario", "read_table"]
