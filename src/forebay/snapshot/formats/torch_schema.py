"""Words of the schema of `torch.cuda.memory._snapshot()`, and the numbers that the columns have for them."""

from __future__ import annotations

from forebay.records.model import Action, State

__all__ = ["ACTIONS", "PINNED", "SEGMENT_TYPES", "STATES"]

PINNED = "pinned"  # the device that stands for pinned memory

ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "segment_alloc": Action.RESERVE,
    "segment_free": Action.RELEASE,
    "oom": Action.OOM,
    "segment_map": Action.MAP,
    "segment_unmap": Action.UNMAP,
    "snapshot": Action.SNAPSHOT,
    "annotate": Action.ANNOTATE,
    "user_defined": Action.ANNOTATE,  # 2.3 to 2.6: a span of the program
}
STATES = {
    "inactive": State.FREE,
    "active_allocated": State.LIVE,
    "active_pending_free": State.PENDING_FREE,
    "active_awaiting_free": State.PENDING_FREE,  # older versions
}
SEGMENT_TYPES = {"small": 1, "large": 0}
