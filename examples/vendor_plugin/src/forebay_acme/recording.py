"""What queues were told while they recorded, and doing it again. `Recorder` has the rules."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from forebay.spi import Queue
from forebay.vendor import Recorder, reseeded, steps

if TYPE_CHECKING:
    from forebay_acme.queue import AcmeQueue

__all__ = ["AcmeRecording"]


class AcmeRecording(Recorder["AcmeQueue"]):
    """A launch is one piece of work: everything, in the order of the recording."""

    _last: tuple[AcmeQueue, int] | None = None  # where it was launched, and the tick behind it

    def take_in(self, queue: AcmeQueue) -> None:
        queue.recording = self

    def let_go(self, queue: AcmeQueue) -> None:
        queue.recording = None

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        from forebay_acme.queue import AcmeQueue

        if not isinstance(queue, AcmeQueue):
            raise TypeError(f"it is launched on an Acme queue, not on a {type(queue).__name__}")
        if self.included(queue, sources):
            return
        with self.lock:
            if self._last is not None:
                queue.wait_for(*self._last)  # launches do not overlap
            queue.submit(partial(self._play, queue, tuple(sources)))
            self._last = queue, queue.signal()

    def _play(self, queue: AcmeQueue, sources: Sequence[tuple[int, int]]) -> None:
        for what, _, details, _ in steps(self.work, _byte_at):
            queue.do(what, {"draw": reseeded(details, sources)} if what == "draw" else details)


def _byte_at(address: int) -> int:
    return ctypes.string_at(address, 1)[0]
