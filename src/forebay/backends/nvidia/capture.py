"""Capture of CUDA queues: forebay's record of the nodes, and the driver's own capture of the same streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from forebay.backends.nvidia._stream import HostCall, NativeHostCall, Stream
from forebay.backends.nvidia.graph_executables import GraphExecutables, destroy_discarded
from forebay.backends.nvidia.graph_memory import GraphMemory
from forebay.backends.nvidia.kernels.draws import launch_draw
from forebay.backends.nvidia.kernels.strided import launch_strided_copy
from forebay.backends.nvidia.queue import CudaQueue
from forebay.backends.nvidia.stream_capture import StreamCapture
from forebay.errors import ForebayError, Unsupported, WrongState
from forebay.spi import Queue
from forebay.vendor import CapturedMemory, CaptureRecorder, MemorySource

__all__ = ["CudaCapturedGraph"]


class CudaCapturedGraph(CaptureRecorder[CudaQueue]):
    """A captured graph of CUDA queues.

    Work that another library launches on a captured stream is a node "external", noticed before the next operation of
    forebay on this stream.
    """

    def __init__(self, first: CudaQueue, mode: str, queues: MutableMapping[int, int]) -> None:
        self.calls: list[HostCall | NativeHostCall] = []  # of the nodes, also of those of graphs inside this one
        self.executables: GraphExecutables | None = None  # when the capture has ended
        self.driver: StreamCapture
        self.memory: GraphMemory = GraphMemory(first.context)
        self._draws: list[tuple[CudaCapturedGraph, Sequence[tuple[int, int]]]] = []  # of graphs inside this one
        self._failure: ForebayError | None = None  # the driver's, when the capture ended
        self.ports: set[MemorySource] = set()  # of the captured queues
        self._inner: list[CapturedMemory[MemorySource]] = []  # of the graphs that are parts of this one
        self.used: CapturedMemory[MemorySource] | None = None  # when the capture has ended
        destroy_discarded(first.context)
        self._mode = mode
        super().__init__(first, mode, queues)

    def attach(self, queue: CudaQueue) -> None:
        self.ports.add(queue.owner)
        if queue is not self._first:
            super().attach(queue)
            return
        self.driver = StreamCapture(queue, self._mode)
        try:
            super().attach(queue)
            self.driver.begin()
        except BaseException:
            if queue.capture is self:
                self.detach(queue)
            raise

    def record(self, queue: CudaQueue, op: str, details: Mapping[str, Any]) -> None:
        if op in {"call", "native"} and self._bodies.get(queue.handle):
            raise Unsupported("the body of a condition cannot call functions of the host", ability="Captures")
        with self.lock:  # another thread may end the capture
            super().record(queue, op, details)
            with self.operation(queue):
                self._capture(queue, op, details)

    def _capture(self, queue: CudaQueue, op: str, details: Mapping[str, Any]) -> None:
        """Let the driver capture the work of a node."""
        target = self.driver.target(queue)
        match op:
            case "copy":
                Stream.copy(target, details["to"], details["source"], details["nbytes"])
            case "fill":
                Stream.fill(target, details["to"], details["byte"], details["nbytes"])
            case "draw":  # reads the position of its source in the memory that each launch writes
                launch_draw(target, details["draw"], self.memory.source(details["draw"].seed))
            case "strided":
                launch_strided_copy(target, details["copy"])
            case "call":
                self.calls.append(call := HostCall(queue, details["function"], repeated=True))
                queue.queue_call(call)
            case "native":
                self.calls.append(native := NativeHostCall(queue, details["function"], details["argument"]))
                queue.queue_native_call(native)

    def add(self, queue: CudaQueue, what: str, **details: Any) -> int:
        with self.lock:
            self._note_foreign_work(queue)
            return super().add(queue, what, **details)

    def signal(self, queue: CudaQueue) -> int:
        with self.lock:
            self._note_foreign_work(queue)
            tick = super().signal(queue)
            with self.operation(queue):
                self.driver.signal(queue, tick)
        return tick

    def add_dependency(self, queue: CudaQueue, tick: int) -> None:
        with self.lock:
            self._note_foreign_work(queue)
            before = self._frontiers[queue.handle]
            super().add_dependency(queue, tick)
            if self._frontiers[queue.handle] == before and self.driver.is_captured(queue):
                return  # the tick precedes anyway
            with self.operation(queue):
                self.driver.wait(queue, tick)

    def add_event(self, queue: Queue, op: str, event: int, function: Callable[[Queue], object]) -> None:
        with self.lock:
            super().add_event(queue, op, event, function)
            with self.operation(self._member(queue)):
                self.driver.split(function, self._members.values())

    def add_child_graph(
        self, queue: CudaQueue, other: CaptureRecorder[CudaQueue], sources: Sequence[tuple[int, int]]
    ) -> None:
        if not isinstance(other, CudaCapturedGraph) or other.executables is None:
            raise WrongState("the graph cannot be launched: its capture did not end successfully")
        if any(node.op in {"if", "while"} for node in other.work):
            raise Unsupported("a graph with conditional nodes cannot be a part of another graph", ability="Captures")
        drawing = other.drawing_graphs()
        if not drawing.isdisjoint(self.drawing_graphs()):
            message = "a graph that draws random numbers can be a part of another graph only once"
            raise Unsupported(message, ability="Captures")
        with self.lock:
            self._note_foreign_work(queue)
            super().add_child_graph(queue, other, sources)
            self.calls += other.calls
            self.ports |= other.ports
            self._inner += [] if other.used is None else [other.used]
            self._draws.append((other, sources))
            with self.operation(queue):
                for part in other.executables.parts:
                    if callable(part):
                        self.driver.split(part, self._members.values())
                    else:
                        self.driver.add_graph(queue, part)

    def drawing_graphs(self) -> set[GraphMemory]:
        """Return the memory of this graph and of those inside it that have positions of random numbers."""
        inner = (graph.drawing_graphs() for graph, _ in self._draws)
        return set[GraphMemory]().union({self.memory} if self.memory.has_sources else (), *inner)

    def _begin(self, queue: Queue, what: str, address: int) -> None:  # of `begin_if` and `begin_while`
        with self.lock:
            super()._begin(queue, what, address)
            member = self._member(queue)
            with self.operation(member):
                self.driver.begin_body(member, what, address)

    def update_condition(self, queue: Queue, address: int) -> None:
        with self.lock:
            super().update_condition(queue, address)
            member = self._member(queue)
            with self.operation(member):
                self.driver.update_condition(member, address)

    def end_body(self, queue: Queue) -> None:
        with self.lock:
            super().end_body(queue)
            member = self._member(queue)
            with self.operation(member):
                self.driver.end_body(member)

    @contextmanager
    def operation(self, queue: CudaQueue) -> Iterator[None]:
        """Invalidate the capture if an operation of the driver fails inside the block."""
        try:
            yield
            self.driver.operated(queue)
        except BaseException:
            self.invalidate()
            raise

    def detach_all(self) -> None:
        with self.lock:
            try:
                self._detach_and_end()
            except BaseException:  # of a signal handler
                self._detach_and_end()
                raise

    def _detach_and_end(self) -> None:
        super().detach_all()
        self._failure = self.driver.end()
        if self._broken:
            self.driver.destroy()

    def end(self, queue: CudaQueue) -> None:
        queue.check_usable()
        try:
            try:
                self._note_foreign_work(queue)
            except ForebayError:
                self.invalidate()
            super().end(queue)
        finally:
            if self._ended and self.executables is None:
                self.driver.destroy()

    def finished(self) -> None:
        if self._failure is not None:
            raise self._failure
        self.used = CapturedMemory(self.ports, self.work, self.watch.releases, self._inner)
        self.executables = GraphExecutables(self.driver.context, self.driver.parts, self.driver.held, self.calls)

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        if not isinstance(queue, CudaQueue):
            raise TypeError(f"a graph of cuda queues is launched on a cuda queue, not on a {type(queue).__name__}")
        if self.add_to_capture(queue, sources) or self.executables is None:  # the latter is not possible then
            return
        queue.check_usable()
        with self.lock:
            if self.used is not None:
                self.used.check(queue)
            written = list(self._write_sources(queue, sources))
            self.executables.launch(queue)
            for memory in written:
                memory.launched(queue)

    def _write_sources(self, queue: CudaQueue, sources: Sequence[tuple[int, int]]) -> Iterator[GraphMemory]:
        """Queue the writes of seeds and offsets for this graph and those inside it."""
        self.memory.write(queue, sources)
        yield self.memory
        for inner, numbers in self._draws:
            shifted = [(sources[number][0], sources[number][1] + offset) for number, offset in numbers]
            yield from inner._write_sources(queue, shifted)  # noqa: SLF001 - another instance

    def _note_foreign_work(self, queue: CudaQueue) -> None:
        """Add a node for what other libraries have launched on a stream, so that dependencies include it."""
        if self._ended or self._broken or not self.driver.has_foreign_work(queue):
            return
        super().add(queue, "external")
        self.driver.operated(queue)
