"""Capture of host queues; a captured graph is launched as native programs and the Python calls between them."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from forebay import _core
from forebay.backends.common.capture_recorder import CaptureRecorder
from forebay.backends.common.captured_memory import CapturedMemory
from forebay.backends.host.program import AtLaunch, Piece, ProgramTemplate, pieces_of, reseeded
from forebay.backends.host.queue import HostQueue, Owner
from forebay.spi import Queue

__all__ = ["HostCapturedGraph"]

_native = _core.Queue


class HostCapturedGraph(CaptureRecorder[HostQueue]):
    """A captured graph of host queues."""

    def __init__(self, first: HostQueue, mode: str, queues: MutableMapping[int, int]) -> None:
        self._pieces: list[Piece] = []
        self.memory: CapturedMemory[Owner] = CapturedMemory((), ())  # until the capture is complete
        self._last: HostQueue | None = None  # the queue of the last launch
        self._inner: list[CapturedMemory[Owner]] = []  # of the graphs that are parts of this one
        super().__init__(first, mode, queues)

    def add_child_graph(
        self, queue: HostQueue, other: CaptureRecorder[HostQueue], sources: Sequence[tuple[int, int]]
    ) -> None:
        super().add_child_graph(queue, other, sources)
        if isinstance(other, HostCapturedGraph):
            self._inner.append(other.memory)

    def finished(self) -> None:
        self._pieces = pieces_of(self.work)
        self.memory = CapturedMemory(self._first.owner.peers(), self.work, self.watch.releases, self._inner)

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        if not isinstance(queue, HostQueue):
            raise TypeError(f"a graph of host queues is launched on a host queue, not on a {type(queue).__name__}")
        if self.add_to_capture(queue, sources):
            return
        with self.lock:
            self._check_memory(queue)
            pieces = [
                reseeded(piece, sources) if isinstance(piece, ProgramTemplate) else piece for piece in self._pieces
            ]
            queue.ensure_programs_backed(piece for piece in pieces if isinstance(piece, bytes))
            if self._last is not None and self._last is not queue and not self._last.closed:
                _native.wait_for(queue, self._last, _native.signal(self._last))
            self._last = queue
            for port in self.memory.ports:
                if port is not queue.owner:
                    port.visitors.add(queue)
            for piece in pieces:
                if isinstance(piece, bytes):
                    while not queue.run_program_at(piece, self.memory.logs, self.memory.checked_at):
                        self._check_memory(queue)
                elif isinstance(piece, AtLaunch):
                    piece.function(queue)
                else:
                    queue.call(piece)

    def _check_memory(self, queue: HostQueue) -> None:
        """Raise DeviceError if the graph uses memory that was released."""
        self.memory.check(queue)
