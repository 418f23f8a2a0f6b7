"""The captures of graphs that are under way in this process, and what they forbid meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay.backends.common.cuda_errors import CAPTURE_FORBIDS, accelerator_error
from forebay.errors import DeviceError
from forebay.runtime.base.queue_capabilities import captures
from forebay.spi import Captures, Queue, Recording

if TYPE_CHECKING:
    from forebay.runtime.graphs.input_liveness import Inputs
    from forebay.runtime.memory.storage import Storage
    from forebay.runtime.random.generator import Generator
    from forebay.runtime.streams.stream import Stream

__all__ = [
    "Capture",
    "abandon",
    "begin",
    "capture_of",
    "end",
    "forbid",
    "forbid_on",
    "forget_in_child",
    "refusal",
    "signal",
    "under_way",
]

under_way: tuple[Capture, ...] = ()  # who asks whether there are any pays nothing else
_changing = threading.RLock()  # a destructor may come in between


@dataclass(eq=False)
class Capture:
    """One of them: who began it, and which generators drew in it."""

    kind: str
    stream: Stream  # that it began on
    queue: Captures  # of that stream
    queues: dict[int, int]  # the recording's
    recording: Recording
    mode: str
    owner: Callable[[], Any]  # the graph, unless it is gone
    thread: int = field(default_factory=threading.get_ident)
    drawn: dict[Generator, int] = field(default_factory=dict)  # words of each thread so far
    bodies: int = 0  # of conditions, that are being recorded
    annotations: dict[int, dict[str, Any]] | None = None  # by number of what was recorded; None: nobody wants them
    inputs: Inputs | None = None  # those it notes, if it does

    def draw(self, generator: Generator, words: int) -> tuple[int, int]:
        """The number of the source that this generator is, and where its next numbers are, from its offset on."""
        if self.bodies:
            raise RuntimeError("RNG within data-dependent conditional nodes is not supported yet.")
        with _changing:
            offset = self.drawn.setdefault(generator, 0)
            self.drawn[generator] = offset + -(-words // 4) * 4
            return list(self.drawn).index(generator), offset

    def use(self, storages: Iterable[Storage]) -> None:
        """What is recorded next reads or writes these."""
        if self.inputs is not None:
            self.inputs.note(storages)

    def minded_by(self, thread: int) -> bool:
        """Whether what could disturb it is forbidden to that thread."""
        return self.mode == "global" or (self.mode == "thread_local" and self.thread == thread)


def begin(capture: Capture) -> None:
    global under_way  # noqa: PLW0603 -- replaced as a whole, so that readers need no lock
    with _changing:
        under_way = (*under_way, capture)


def end(capture: Capture) -> None:
    global under_way  # noqa: PLW0603 -- as above
    with _changing:
        under_way = tuple(other for other in under_way if other is not capture)


def capture_of(queue: Queue) -> Capture | None:
    """The capture that the queue takes part in."""
    if not under_way:
        return None
    if not captures(queue):
        return None
    recording = queue.capture
    return next((capture for capture in under_way if capture.recording is recording), None)


def forbid(kind: str, call: str) -> None:
    """For what could disturb a capture, like waiting: where one minds, it is broken, and DeviceError 900."""
    me, minding = threading.get_ident(), False
    for capture in under_way:
        if capture.kind == kind and capture.minded_by(me):
            capture.queue.break_capture()
            minding = True
    if minding:
        raise refusal(kind, CAPTURE_FORBIDS, call)


def forbid_on(queue: Queue, kind: str, call: str) -> None:
    """For what no graph can repeat: where that queue is being captured, its capture is broken, and DeviceError 900."""
    if (capture := capture_of(queue)) is not None:
        capture.queue.break_capture()
        raise refusal(kind, CAPTURE_FORBIDS, call)


def refusal(kind: str, code: int, call: str) -> DeviceError:
    """CUDA's error of that number, for a device of the kind."""
    return accelerator_error(code, kind=kind, call=call, device=kind)


def signal(queue: Queue) -> int:
    """A tick behind all that the queue was given to do; what is being recorded of it is nothing of that."""
    tick = queue.signal()
    while tick < 0 and captures(queue):
        recording = queue.capture
        tick = queue.signal() if recording is None else recording.queues.get(queue.handle, 0)
    return tick


def abandon(kind: str) -> None:
    """There are no devices of the kind any more."""
    for capture in under_way:
        if capture.kind == kind:
            capture.queue.abandon_capture()
            end(capture)


def forget_in_child() -> None:
    """For the fork handler: the parent's go on there."""
    global under_way, _changing  # noqa: PLW0603 -- another thread of the parent may have held the old lock
    _changing = threading.RLock()
    under_way = ()
