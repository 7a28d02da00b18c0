"""A run's folder: what was measured (``results.parquet``), under what circumstances (``manifest.json``)."""

from testbed.results.circumstances import circumstances, digest
from testbed.results.fault_log import FAULT_COLUMNS, FaultLog
from testbed.results.folder import RunFolder
from testbed.results.table import COLUMNS, Run, Table, load_run

__all__ = ["COLUMNS", "FAULT_COLUMNS", "FaultLog", "Run", "RunFolder", "Table", "circumstances", "digest", "load_run"]
