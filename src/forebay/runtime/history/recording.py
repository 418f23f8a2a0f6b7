"""What of the history is recorded: `torch.cuda.memory._record_memory_history`'s arguments and their meaning."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from forebay.errors import ForebayError
from forebay.runtime.history import annotations as history_annotations
from forebay.runtime.history.torch_schema import ACTIONS

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.pinned.history import PinnedHistory

__all__ = [
    "UNLIMITED",
    "check",
    "check_actions",
    "follow",
    "follow_pinned",
    "forget_kind",
    "keep_for",
    "kept_for",
    "start",
]

UNLIMITED = (1 << 63) - 1
_DEPTH = 256  # frames of a stack
_BY_NAME = {name: int(action) for action, name in ACTIONS.items()}

# What a kind's devices record that are opened from now on, and its pinned memory.
_devices: dict[str, Callable[[Allocator], object]] = {}
_pinned: dict[str, Callable[[PinnedHistory], object]] = {}


def check(enabled: str | None, context: str | None, stacks: str, max_entries: int) -> None:
    """Raises ForebayError, a RuntimeError, with PyTorch's text for words that it does not know."""
    if enabled not in (None, "state", "all"):
        raise ForebayError("expected state to be 'state', 'all', or None")
    if context not in (None, "state", "alloc", "all"):
        raise ForebayError("expected context to be 'state', 'alloc', 'all', or None")
    if stacks not in ("python", "all"):
        raise ForebayError("expected stacks to be 'python', or 'all'")
    if max_entries < 0:
        raise ValueError(f"max_entries cannot be negative: {max_entries}")


def check_actions(names: Collection[str]) -> None:
    """Raises ForebayError for the first that is none."""
    for name in names:
        if name not in _BY_NAME:
            raise ForebayError(f"Unknown TraceEntry action: {name}")


def start(
    allocator: Allocator,
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = UNLIMITED,
    *,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Collection[str] = (),
    depth: int = _DEPTH,
) -> None:
    """Begin, change or (`enabled` None) end a recording.

    `context` says which stacks are taken: of what is allocated now ("state"), of entries too ("alloc"), of frees as
    well ("all"), or none at all; of each the innermost `depth` frames. What was recorded before stays, unless
    `clear_history`. Raises as `check`, and for unknown actions.
    """
    check(enabled, context, stacks, max_entries)
    check_actions(skip_actions)
    if enabled is None:
        allocator.record(0)
        allocator.labels = history_annotations.Labels()
        return
    most = max(max_entries, 1) if enabled == "all" else 1
    if clear_history or not allocator.recording:
        allocator.labels = history_annotations.Labels(
            contexts=compile_context, annotations=global_record_annotations, most=min(most, 1 << 20)
        )
    allocator.record(
        most,
        0 if context is None else depth,
        stacks=context in ("alloc", "all"),
        frees=context == "all",
        skip=sum(1 << _BY_NAME[name] for name in set(skip_actions)),
        keep=not clear_history,
    )
    history_annotations.listen(allocator)


def keep_for(
    kind: str, device: Callable[[Allocator], object] | None, pinned: Callable[[PinnedHistory], object] | None
) -> None:
    """How those of the kind begin to record that come later; None: they do not."""
    for table, begin in ((_devices, device), (_pinned, pinned)):
        if begin is None:
            table.pop(kind, None)
        else:
            table[kind] = begin  # type: ignore[assignment]  # each has its own argument


def kept_for(kind: str) -> Callable[[Allocator], object] | None:
    return _devices.get(kind)


def follow(kind: str, allocator: Allocator) -> None:
    """The device was opened now."""
    if (begin := _devices.get(kind)) is not None:
        begin(allocator)


def follow_pinned(kind: str, history: PinnedHistory) -> None:
    """Pinned memory of the kind is there now."""
    if (begin := _pinned.get(kind)) is not None:
        begin(history)


def forget_kind(kind: str) -> None:
    """Its emulation has ended."""
    keep_for(kind, None, None)
