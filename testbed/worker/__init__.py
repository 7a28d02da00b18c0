"""One worker process per host: started, watched and called by the controller."""

from testbed.worker.context import WorkerContext
from testbed.worker.controller import Workers
from testbed.worker.worker import Worker

__all__ = ["Worker", "WorkerContext", "Workers"]
