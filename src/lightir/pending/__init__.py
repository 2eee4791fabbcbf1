"""Pending documents: the queue beside an index, and the workers that encode and commit its documents."""

from lightir.pending.delivery import Delivery, Encoded, deliver, encode_documents, require_fit
from lightir.pending.demand import DEMAND_TOP, Demand
from lightir.pending.keys import keys_of_pending, pending_keys
from lightir.pending.queue import Claim, Failure, Queue, failures_of, verify_queue
from lightir.pending.worker_loop import WorkOptions, WorkReport, work

__all__ = [
    "DEMAND_TOP",
    "Claim",
    "Delivery",
    "Demand",
    "Encoded",
    "Failure",
    "Queue",
    "WorkOptions",
    "WorkReport",
    "deliver",
    "encode_documents",
    "failures_of",
    "keys_of_pending",
    "pending_keys",
    "require_fit",
    "verify_queue",
    "work",
]
