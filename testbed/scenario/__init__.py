"""Scenario files: how one is read, and what is said when it is wrong. What may stand in one is
`testbed.workloads`' concern.
"""

from testbed.scenario.load import load_scenario, parse_scenario, read_table
from testbed.workloads.scenario import Scenario

__all__ = ["Scenario", "load_scenario", "parse_scenario", "read_table"]
