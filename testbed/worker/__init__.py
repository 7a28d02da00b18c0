"""One worker process a host: started, watched and called by the controller."""

from testbed.worker.context import WorkerContext
from testbed.worker.controller import Worker, Workers

__all__ = ["Worker", "WorkerContext", "Workers"]
