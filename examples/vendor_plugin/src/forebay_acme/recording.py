"""Captured graphs of Acme queues; `CaptureRecorder` implements the rules of a capture."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

from forebay.spi import Queue
from forebay.vendor import CaptureRecorder, executed_nodes, launch_parts, reseeded_draw
from forebay_acme.queue import AcmeQueue

__all__ = ["AcmeCapturedGraph"]


class AcmeCapturedGraph(CaptureRecorder[AcmeQueue]):
    """A captured graph, launched as one piece of work between each two events that executes its nodes in order."""

    _last: tuple[AcmeQueue, int] | None = None  # queue and tick of the last launch

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        if not isinstance(queue, AcmeQueue):
            raise TypeError(f"the graph is launched on an Acme queue, not on a {type(queue).__name__}")
        if self.add_to_capture(queue, sources):
            return
        with self.lock:
            if self._last is not None:
                queue.wait_for(*self._last)  # launches of one graph do not overlap
            for part in launch_parts(self.work):
                if isinstance(part, range):
                    queue.submit(partial(self._execute, queue, tuple(sources), part))
                else:
                    part(queue)
            self._last = queue, queue.signal()

    def _execute(self, queue: AcmeQueue, sources: Sequence[tuple[int, int]], part: range) -> None:
        for what, _, details, _ in executed_nodes(self.work, _byte_at, part):
            queue.execute(what, {"draw": reseeded_draw(details, sources)} if what == "draw" else details)


def _byte_at(address: int) -> int:
    return ctypes.string_at(address, 1)[0]
