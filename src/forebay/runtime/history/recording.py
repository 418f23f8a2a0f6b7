"""Recording of the memory history, with the arguments of `torch.cuda.memory._record_memory_history`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from forebay.errors import ForebayError
from forebay.records.model import ENTRY
from forebay.runtime.history.annotations import register
from forebay.runtime.history.labels import Labels
from forebay.runtime.history.program_history import ProgramHistory
from forebay.runtime.history.recorded_pool import RecordedPool
from forebay.runtime.history.torch_schema import ACTIONS

__all__ = [
    "UNLIMITED",
    "check",
    "check_actions",
    "first_frames_outside",
    "get_default",
    "recording_of",
    "set_default",
    "set_whole",
    "start",
    "start_default",
    "start_whole",
]

UNLIMITED = (1 << 63) - 1
_DEPTH = 256  # frames of a stack
_MOST_SPANS = 1 << 20  # of annotations
_BY_NAME = {name: int(action) for action, name in ACTIONS.items()}

_whole: dict[str, Callable[[RecordedPool], object]] = {}  # by kind: as below, of a command
_defaults: dict[str, Callable[[RecordedPool], object]] = {}  # by kind: starts the recording of a device just opened


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
    pool: RecordedPool,
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
    thread: int | None = None,
) -> None:
    """Start, change or (`enabled` None) stop a recording.

    `context` selects which stacks are captured, of each the innermost `depth` frames: those of live blocks ("state"),
    also of entries ("alloc"), also of frees ("all"), or none (None). With `stacks` "python" they begin outside forebay.
    `record_function` of PyTorch is recorded in the `thread`, all annotations with `global_record_annotations`.
    Earlier entries are kept unless `clear_history`. Raises as `check` and `check_actions`.
    """
    check(enabled, context, stacks, max_entries)
    check_actions(skip_actions)
    if pool.program is not None:
        most = 0 if enabled is None else max(max_entries, 1) if enabled == "all" else 1
        skipped = {_BY_NAME[name] for name in skip_actions}
        _start_in_whole(pool, pool.program, context, most, depth, clear_history=clear_history, skip=skipped)
        pool.labels.record(
            contexts=compile_context, annotations=global_record_annotations, most=min(most, _MOST_SPANS), thread=thread
        )
        return
    if enabled is None:
        pool.record_history(0)
        pool.labels = Labels()
        return
    capacity = max(max_entries, 1) if enabled == "all" else 1
    if clear_history or not pool.recording:
        pool.labels = Labels(
            contexts=compile_context,
            annotations=global_record_annotations,
            most=min(capacity, _MOST_SPANS),
            thread=thread,
        )
    pool.labels.starts += 1
    pool.record_history(
        capacity,
        0 if context is None else depth,
        stacks=context in ("alloc", "all"),
        frees=context == "all",
        skip=sum(1 << _BY_NAME[name] for name in set(skip_actions)),
        keep=not clear_history,
        outside=first_frames_outside(stacks),
    )
    register(pool)


def start_whole(pool: RecordedPool, max_entries: int, *, stacks: bool = True) -> None:
    """Record the whole history for a command, anew; what the program records is a part of it: Note [Two recordings]."""
    pool.program = None
    context = "alloc" if stacks else None
    start(pool, context=context, stacks="python", max_entries=max_entries, clear_history=True)
    pool.program = ProgramHistory()
    pool.whole = max_entries, _DEPTH if stacks else 0


def _start_in_whole(
    pool: RecordedPool,
    program: ProgramHistory,
    context: str | None,
    most: int,
    depth: int,
    *,
    clear_history: bool,
    skip: Collection[int],
) -> None:
    """Start, change or (`most` 0) stop what the program records of the whole history."""
    entries, own_depth = pool.whole
    _, _, history, lost, _ = pool.tables()
    number = lost + len(history) // ENTRY.itemsize
    if most:
        program.start(number, context, most, clear_history=clear_history, skip=skip)
    else:
        program.stop(number)
    pool.record_history(
        max(entries, most),
        max(own_depth, depth if most and context is not None else 0),
        stacks=True,
        frees=most > 0 and context == "all",
        keep=True,
        outside=first_frames_outside("python"),
    )
    register(pool)


@contextmanager
def recording_of(pool: RecordedPool, max_entries: int) -> Iterator[None]:
    """Record the history inside the context, with the stacks of allocations.

    A recording that was running before continues with its own arguments, and one that the program starts or changes
    inside the context continues after it.
    """
    if pool.recording:
        yield
        return
    start(pool, context="alloc", stacks="python", max_entries=max_entries, clear_history=True)
    ours = pool.labels
    try:
        yield
    finally:
        if pool.labels is ours and ours.starts == 1:
            start(pool, None)


def set_default(kind: str, start_recording: Callable[[RecordedPool], object] | None) -> None:
    """Set how devices of the kind that are opened later start to record; None: not at all."""
    if start_recording is None:
        _defaults.pop(kind, None)
    else:
        _defaults[kind] = start_recording


def get_default(kind: str) -> Callable[[RecordedPool], object] | None:
    """Return the function that `set_default` set for devices of the kind."""
    return _defaults.get(kind)


def set_whole(kind: str, start_recording: Callable[[RecordedPool], object] | None) -> None:
    """Set how a command records the whole history of devices of the kind that are opened later; None: not at all."""
    if start_recording is None:
        _whole.pop(kind, None)
    else:
        _whole[kind] = start_recording


def start_default(kind: str, pool: RecordedPool) -> None:
    """Start recording on a device that was just opened, if set for its kind."""
    if (start_recording := _whole.get(kind)) is not None:
        start_recording(pool)
    if (start_recording := _defaults.get(kind)) is not None:
        start_recording(pool)
