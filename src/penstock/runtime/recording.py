"""What of the history is recorded: `torch.cuda.memory._record_memory_history`'s arguments and their meaning."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.runtime.torch_snapshot import ACTIONS

if TYPE_CHECKING:
    from penstock._core import Pool

__all__ = ["UNLIMITED", "start"]

UNLIMITED = (1 << 63) - 1
_DEPTH = 256  # frames of a stack


def start(
    pool: Pool,
    enabled: str | None,
    context: str | None,
    stacks: str,
    max_entries: int,
    clear_history: bool,
    skip_actions: Collection[str],
) -> None:
    """Begin, change or (`enabled` None) end a recording.

    `context` says which stacks are taken: of what is allocated now ("state"), of entries too ("alloc"), of frees as
    well ("all"), or none at all. Raises ValueError for words that PyTorch does not know either.
    """
    if enabled not in (None, "state", "all"):
        raise ValueError(f"expected state to be 'state', 'all', or None, not {enabled!r}")
    if context not in (None, "state", "alloc", "all"):
        raise ValueError(f"expected context to be 'state', 'alloc', 'all', or None, not {context!r}")
    if stacks not in ("python", "all"):
        raise ValueError(f"expected stacks to be 'python', or 'all', not {stacks!r}")
    by_name = {name: int(action) for action, name in ACTIONS.items()}
    if unknown := sorted(set(skip_actions) - by_name.keys()):
        raise ValueError(f"unknown actions {unknown}; there are {sorted(by_name)}")
    if enabled is None:
        pool.record(0)
        return
    pool.record(
        max(max_entries, 1) if enabled == "all" else 1,
        0 if context is None else _DEPTH,
        stacks=context in ("alloc", "all"),
        frees=context == "all",
        skip=sum(1 << by_name[name] for name in skip_actions),
    )
