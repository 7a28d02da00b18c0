"""A run's folder: what was measured (``results.parquet``), in which environment
(``manifest.json``).
"""

from testbed.results.environment import digest, environment
from testbed.results.fault_log import FAULT_COLUMNS, FaultLog
from testbed.results.folder import KILLED, RunFolder, settle
from testbed.results.stack_log import STACK_COLUMNS, StackLog, load_stacks
from testbed.results.table import COLUMNS, Run, Table, load_run

__all__ = [
    "COLUMNS",
    "FAULT_COLUMNS",
    "KILLED",
    "STACK_COLUMNS",
    "FaultLog",
    "Run",
    "RunFolder",
    "StackLog",
    "Table",
    "digest",
    "environment",
    "load_run",
    "load_stacks",
    "settle",
]
