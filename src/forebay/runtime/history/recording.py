"""Recording of the memory history, with the arguments of `torch.cuda.memory._record_memory_history`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
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
    "first_frames_outside",
    "get_default",
    "recording_of",
    "reset_kind",
    "set_default",
    "start",
    "start_default",
    "start_default_pinned",
]

UNLIMITED = (1 << 63) - 1
_DEPTH = 256  # frames of a stack
_BY_NAME = {name: int(action) for action, name in ACTIONS.items()}

# By kind: starts the recording of each device opened from now on, and of its pinned memory.
_devices: dict[str, Callable[[Allocator], object]] = {}
_pinned: dict[str, Callable[[PinnedHistory], object]] = {}


def check(enabled: str | None, context: str | None, stacks: str, max_entries: int) -> None:
    """Raise ForebayError, a RuntimeError, with PyTorch's text if an argument is invalid."""
    if enabled not in (None, "state", "all"):
        raise ForebayError("expected state to be 'state', 'all', or None")
    if context not in (None, "state", "alloc", "all"):
        raise ForebayError("expected context to be 'state', 'alloc', 'all', or None")
    if stacks not in ("python", "all"):
        raise ForebayError("expected stacks to be 'python', or 'all'")
    if max_entries < 0:
        raise ValueError(f"max_entries cannot be negative: {max_entries}")


def check_actions(names: Collection[str]) -> None:
    """Raise ForebayError for the first name that is not an action."""
    for name in names:
        if name not in _BY_NAME:
            raise ForebayError(f"Unknown TraceEntry action: {name}")


def first_frames_outside(stacks: str) -> str | None:
    """Return the folder whose functions a stack does not begin with: forebay's for "python", None for "all".

    PyTorch's functions are C++ functions, which only "all" records.
    """
    if stacks != "python":
        return None
    from pathlib import Path  # at its use, as its import takes long

    return str(Path(__file__).parents[2]) + os.sep


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
    """Start, change or (`enabled` None) stop a recording.

    `context` selects which stacks are captured, of each the innermost `depth` frames: those of live blocks ("state"),
    also of entries ("alloc"), also of frees ("all"), or none (None). With `stacks` "python" they begin outside forebay.
    Earlier entries are kept unless `clear_history`. Raises as `check` and `check_actions`.
    """
    check(enabled, context, stacks, max_entries)
    check_actions(skip_actions)
    if enabled is None:
        allocator.record_history(0)
        allocator.labels = history_annotations.Labels()
        return
    capacity = max(max_entries, 1) if enabled == "all" else 1
    if clear_history or not allocator.recording:
        allocator.labels = history_annotations.Labels(
            contexts=compile_context, annotations=global_record_annotations, most=min(capacity, 1 << 20)
        )
    allocator.labels.starts += 1
    allocator.record_history(
        capacity,
        0 if context is None else depth,
        stacks=context in ("alloc", "all"),
        frees=context == "all",
        skip=sum(1 << _BY_NAME[name] for name in set(skip_actions)),
        keep=not clear_history,
        outside=first_frames_outside(stacks),
    )
    history_annotations.register(allocator)


@contextmanager
def recording_of(allocator: Allocator, max_entries: int) -> Iterator[None]:
    """Record the history inside the context, with the stacks of allocations.

    A recording that was running before continues with its own arguments, and one that the program starts or changes
    inside the context continues after it.
    """
    if allocator.recording:
        yield
        return
    start(allocator, context="alloc", stacks="python", max_entries=max_entries, clear_history=True)
    ours = allocator.labels
    try:
        yield
    finally:
        if allocator.labels is ours and ours.starts == 1:
            start(allocator, None)


def set_default(
    kind: str, device: Callable[[Allocator], object] | None, pinned: Callable[[PinnedHistory], object] | None
) -> None:
    """Set how devices of the kind that are opened later, and its pinned memory, start to record; None: not at all."""
    for table, start_recording in ((_devices, device), (_pinned, pinned)):
        if start_recording is None:
            table.pop(kind, None)
        else:
            table[kind] = start_recording  # type: ignore[assignment]  # the tables differ in type


def get_default(kind: str) -> Callable[[Allocator], object] | None:
    """Return the function that `set_default` set for devices of the kind."""
    return _devices.get(kind)


def start_default(kind: str, allocator: Allocator) -> None:
    """Start recording on a device that was just opened, if set for its kind."""
    if (start_recording := _devices.get(kind)) is not None:
        start_recording(allocator)


def start_default_pinned(kind: str, history: PinnedHistory) -> None:
    """Start recording pinned memory whose allocator was just made, if set for its kind."""
    if (start_recording := _pinned.get(kind)) is not None:
        start_recording(history)


def reset_kind(kind: str) -> None:
    """Discard the kind's settings when its emulation ends."""
    set_default(kind, None, None)
