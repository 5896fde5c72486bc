"""Queues in this process's memory: the state machine with nothing around it. For tests, demos, and a single process that may lose its jobs."""

from .adapter import Memory, open_memory

__all__ = ["Memory", "open_memory"]
