"""The worker: a supervisor and its processes, or one worker inside the caller's own process."""

from . import logs
from .foreground import run_in_foreground
from .report import Report
from .settings import WorkerSettings
from .stop import Stop
from .supervisor import Supervisor
from .worker import Worker

logs.guard()

__all__ = ["Report", "Stop", "Supervisor", "Worker", "WorkerSettings", "run_in_foreground"]
