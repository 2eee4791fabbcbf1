"""Pending documents: the queue beside an index, and the workers that encode and commit what it holds."""

from lightir.pending.demand import Demand
from lightir.pending.queue import Claim, Failure, Queue, failures_of
from lightir.pending.worker_loop import WorkReport, work

__all__ = ["Claim", "Demand", "Failure", "Queue", "WorkReport", "failures_of", "work"]
