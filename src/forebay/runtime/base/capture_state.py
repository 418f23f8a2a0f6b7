"""Active graph captures of this process, and the operations that they forbid."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay.backends.common.cuda_errors import CAPTURE_FORBIDS, accelerator_error
from forebay.errors import DeviceError
from forebay.runtime.base.queue_capabilities import can_capture
from forebay.spi import CapturedGraph, Captures, Queue

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.runtime.graphs.input_liveness import InputLiveness
    from forebay.runtime.memory.storage import Storage
    from forebay.runtime.random.philox_state import PhiloxState
    from forebay.runtime.streams.stream import Stream

__all__ = [
    "Capture",
    "abandon_kind",
    "active",
    "after_fork_in_child",
    "begin",
    "capture_error",
    "capture_of",
    "end",
    "forbid",
    "forbid_on",
    "is_under_way",
    "signal",
]

active: tuple[Capture, ...] = ()  # a module global: testing for an active capture costs one read
_lock = threading.RLock()  # reentrant: a destructor may run inside


@dataclass(eq=False)
class Capture:
    """State of one active capture."""

    kind: str
    stream: Stream  # on which the capture began
    queue: Captures  # of that stream
    queues: dict[int, int]  # of the recording
    recording: CapturedGraph
    mode: str
    owner: Callable[[], Any]  # returns the graph, or None if it was deleted
    thread: int = field(default_factory=threading.get_ident)
    drawn: dict[PhiloxState, int] = field(default_factory=dict)  # 32-bit words used per GPU thread so far
    bodies: int = 0  # bodies of conditional nodes being recorded
    annotations: dict[int, dict[str, Any]] | None = None  # by node number; None: disabled
    inputs: InputLiveness | None = None  # None: inputs are not tracked
    hosts: set[OpenDevice] = field(default_factory=set)  # the CPU, if the graph copies from or to its memory

    def draw(self, state: PhiloxState, words: int) -> tuple[int, int]:
        """Reserve random words. Return the state's index in this capture and the reserved offset from its start.

        See Note [Positions of draws].
        """
        if self.bodies:
            raise RuntimeError("RNG within data-dependent conditional nodes is not supported yet.")
        if state not in self.drawn and (graph := self.owner()) is not None:
            graph.add_seed_memory()
        with _lock:
            offset = self.drawn.setdefault(state, 0)
            self.drawn[state] = offset + -(-words // 4) * 4
            return list(self.drawn).index(state), offset

    def note_inputs(self, storages: Iterable[Storage]) -> None:
        """Note that the work recorded next reads or writes the storages."""
        if self.inputs is not None:
            self.inputs.note(storages)

    def forbids(self, thread: int) -> bool:
        """Return True if the capture mode forbids operations that could disturb the capture to the thread."""
        return self.mode == "global" or (self.mode == "thread_local" and self.thread == thread)


def begin(capture: Capture) -> None:
    global active  # noqa: PLW0603 -- replaced as a whole, so readers need no lock
    with _lock:
        active = (*active, capture)


def end(capture: Capture) -> None:
    global active  # noqa: PLW0603 -- as above
    with _lock:
        active = tuple(other for other in active if other is not capture)


def capture_of(queue: Queue) -> Capture | None:
    """Return the capture that the queue is part of, or None."""
    if not active:
        return None
    if not can_capture(queue):
        return None
    recording = queue.capture
    return next((capture for capture in active if capture.recording is recording), None)


def is_under_way(kind: str) -> bool:
    """Return True while work on a device of the kind is captured."""
    return any(capture.kind == kind for capture in active)


def forbid(kind: str, call: str) -> None:
    """Break each capture that forbids an operation such as synchronising, and raise DeviceError 900 if there is any."""
    thread, broken = threading.get_ident(), False
    for capture in active:
        if capture.kind == kind and capture.forbids(thread):
            capture.queue.break_capture()
            broken = True
    if broken:
        raise capture_error(kind, CAPTURE_FORBIDS, call)


def forbid_on(queue: Queue, kind: str, call: str) -> None:
    """Break the queue's capture, if any, and raise DeviceError 900: no graph can replay the operation."""
    if (capture := capture_of(queue)) is not None:
        capture.queue.break_capture()
        raise capture_error(kind, CAPTURE_FORBIDS, call)


def capture_error(kind: str, code: int, call: str) -> DeviceError:
    """Return CUDA's error with this code, for a device of the kind."""
    return accelerator_error(code, kind=kind, call=call, device=kind)


def signal(queue: Queue) -> int:
    """Return a tick after all work queued so far, without the work that is being captured."""
    capturing = bool(active)
    while True:
        if capturing and can_capture(queue) and (recording := queue.capture) is not None:
            return recording.queues.get(queue.handle, 0)
        if (tick := queue.signal()) >= 0 or not can_capture(queue):
            return tick
        capturing = True  # begun by another thread, or by the backend's user


def abandon_kind(kind: str) -> None:
    """Abandon the kind's captures when its devices are closed."""
    for capture in active:
        if capture.kind == kind:
            capture.queue.abandon_capture()
            end(capture)


def after_fork_in_child() -> None:
    """Drop all captures in a forked child; they continue in the parent."""
    global active, _lock  # noqa: PLW0603 -- another thread of the parent may have held the old lock
    _lock = threading.RLock()
    active = ()
