"""Graphs: the work of a stream recorded once, and done again and again."""

from __future__ import annotations

import warnings
import weakref
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from forebay.backends.common.cuda_errors import ILLEGAL_STATE
from forebay.errors import DeviceError, Unsupported, WrongState
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.capture_state import Capture
from forebay.runtime.base.queue_capabilities import captures
from forebay.runtime.devices import current
from forebay.runtime.graphs import annotations as graphs_annotations
from forebay.runtime.graphs import graph_export
from forebay.runtime.graphs.conditional_nodes import Conditions
from forebay.runtime.graphs.graph_hooks import (
    GraphHooks,
    capture_began,
    captured,
    instantiated,
    replay_began,
    replayed,
)
from forebay.runtime.graphs.input_liveness import Inputs
from forebay.runtime.memory.mem_pool import MemPool
from forebay.runtime.streams.stream import Stream, default_of, stream_of
from forebay.spi import Queue, Recording

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.runtime.random.generator import Generator

__all__ = ["Graph", "capturing_graph", "pool_id"]

_MODES = ("global", "thread_local", "relaxed")
_numbers = count(1)  # of the pools that graphs make
_names = count(1)  # of what has been instantiated


class Graph(GraphHooks, Conditions):
    """What the current stream is told between `capture_begin` and `capture_end` is recorded; `replay` does it.

    What is allocated meanwhile comes from a pool of the graph's own and stays there as long as the graph does. Random
    numbers are new in each replay. With `keep_graph` what was recorded can be looked at after `capture_end`, and
    `instantiate` is called by the user, or by the first replay. (`torch.cuda.CUDAGraph`)

    >>> import forebay
    >>> graph, stream = Graph(), forebay.Stream("host:0")
    >>> with stream:
    ...     counts = forebay.zeros(2)
    ...     graph.capture_begin()
    ...     _ = counts.fill_(7)
    ...     graph.capture_end()
    ...     before = counts.tolist()
    ...     graph.replay()
    ...     before, counts.tolist()
    ([0.0, 0.0], [7.0, 7.0])
    """

    name: ClassVar[str] = "Graph"  # in messages
    modes: ClassVar[tuple[str, ...]] = _MODES
    of_default_stream: ClassVar[bool] = False  # whether that can be recorded

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__()
        self._keep_graph = bool(keep_graph)
        self._capture: Capture | None = None  # that is under way
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._opened: OpenDevice | None = None
        self._recording: Recording | None = None
        self._sources: list[tuple[Generator, int]] = []  # and how many words each replay draws
        self._pools: list[PoolId] = []
        self._template = False  # what was recorded can be looked at
        self._exec = 0  # the number of what can be replayed
        self._title = ""
        self._replayed: set[Stream] = set()
        self._latest: Stream | None = None
        self._inputs: Inputs | None = None
        self._annotations: dict[int, dict[str, Any]] | None = None
        self._arm()

    # Capture

    def capture_begin(
        self,
        pool: PoolId | MemPool | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Record what the current stream is told from now on; it must not be the device's default stream.

        `pool` is another graph's `pool()`, a `graph_pool_handle()` or a MemPool, to share memory. While a capture of
        mode "global" goes on no thread may wait for devices of the kind, or ask how far they are; with "thread_local"
        this thread may not; with "relaxed" only the captured streams may not be asked. What is done all the same breaks
        the capture, with DeviceError 900. With `check_input_liveness` a replay that would use tensors that are gone
        raises RuntimeError.
        """
        if capture_error_mode not in self.modes:
            said = [f"`{mode}`" for mode in self.modes]
            expected = f"{', '.join(said[:-1])}, or {said[-1]}"
            raise RuntimeError(f"Unknown capture error mode. Expected {expected}, got {capture_error_mode}")
        if self._recording is not None:
            raise RuntimeError(
                f"This {self.name} instance already owns a captured graph. To capture a new graph, create a new "
                "instance."
            )
        stream = self._stream()
        if not self.of_default_stream and stream == default_of(stream.opened):
            raise RuntimeError(
                f"{stream.device.kind.upper()} graphs must be captured on a non-default stream. (However, after "
                "capture, it's ok to replay them on the default stream.)"
            )
        if not captures(stream.queue):
            raise Unsupported(f"{stream.device.kind} records no graphs", ability="Captures")
        mode = capture_error_mode if capture_error_mode in _MODES else _MODES[0]
        with ExitStack() as undo:
            self._begin(stream, pool, mode, undo)
            if check_input_liveness and self._capture is not None:
                self._capture.inputs = self._inputs = Inputs()
            if capture_began:
                capture_began.tell(self)
            self._capture_start_hooks.call(self)
            undo.pop_all()

    def _begin(self, stream: Stream, pool: PoolId | MemPool | None, mode: str, undo: ExitStack) -> None:
        queue, opened = stream.queue, stream.opened
        if not captures(queue) or queue.capture is not None:
            raise capture_state.refusal(opened.device.kind, ILLEGAL_STATE, "capture_begin")
        if isinstance(pool, MemPool):
            pool.join(opened)
        found = pool_id(pool) or (next(_numbers), 0)
        allocator = opened.allocator
        queues = {queue.handle: queue.signal()}
        allocator.begin_capture(found, queues)
        undo.callback(self._begin_anew)
        undo.callback(allocator.private.leave, found)
        undo.callback(allocator.end_capture, found, queues)
        recording = queue.begin_capture(mode, queues)
        undo.callback(queue.abandon_capture)
        capture = Capture(opened.device.kind, stream, queue, queues, recording, mode, weakref.ref(self))
        undo.callback(setattr, self, "_capture", None)
        self._opened, self._pools, self._capture = opened, [found], capture
        undo.callback(capture_state.end, capture)
        capture_state.begin(capture)

    def capture_end(self) -> None:
        """The graph is whole, and can be replayed. Raises DeviceError where the capture was broken.

        On the stream it began on, and by the thread that began it unless the mode is "relaxed". After an error the
        streams are as they were before, and nothing is left of the capture.
        """
        self.capture_end_pre()
        if captured:
            captured.tell(self)
        self._capture_end_hooks.call(self)
        if not self._keep_graph:
            self.instantiate()
        self.capture_end_post()

    def capture_end_pre(self) -> None:
        """End the capture, so that it can be looked at before `capture_end_post` finishes it."""
        capture, opened = self._capture, self._opened
        if capture is None or opened is None:
            raise RuntimeError("capture_end() called before capture_begin().")
        queue = capture.queue
        if self._stream() != capture.stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        try:
            recording = queue.end_capture()
        except BaseException as error:
            if not (isinstance(error, DeviceError) and queue.capture is capture.recording):
                self._abandon()
            raise
        self._leave_capture()
        self._recording, self._template = recording, True
        self._sources = list(capture.drawn.items())
        if not recording.work:
            warnings.warn(
                f"The {capture.kind.upper()} Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=3,
            )

    def capture_end_post(self) -> None:
        """Finish what `capture_end_pre` ended: unless it is to be kept, it can be looked at no more."""
        self._template = self._template and self._keep_graph

    def annotate(self) -> None:
        """Let what is captured from now on be annotated."""
        if self._capture is not None:
            self._capture.annotations = self._annotations = {}

    def _leave_capture(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None and self._opened is not None:
            capture_state.end(capture)
            self._opened.allocator.end_capture(self._pools[0], capture.queues)

    def _abandon(self) -> None:
        """As if the capture had not begun."""
        if self._capture is not None:
            self._capture.queue.abandon_capture()
        self._leave_capture()
        self._release()

    # What can be replayed

    def instantiate(self) -> None:
        """Make what was recorded ready to replay: for those with `keep_graph`; others are by `capture_end`."""
        if self._recording is None:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if not self._template:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._exec = next(_names)
        self._title = f"{self.name} {self._exec}"  # for who traces
        if self._annotations is not None:
            graphs_annotations.instantiated(self, self._annotations)
        if instantiated:
            instantiated.tell(self)
        self._instantiate_hooks.call(self)

    @property
    def _has_graph_exec(self) -> bool:
        return self._exec != 0

    def replay(self) -> None:
        """Queue all of it on the current stream of its device, behind replays of it elsewhere. Never waits."""
        if self._inputs is not None:
            self._inputs.check(self.pools())
        if not self._exec:
            self.instantiate()
        recording, opened = self._recording, self._opened
        if recording is None or opened is None:  # a hook has reset it
            raise RuntimeError(f"Called {self.name}::replay without a preceding successful capture.")
        stream = stream_of(opened)
        queue = stream.queue
        if stream is not self._latest:
            self._latest = stream
            self._replayed.add(stream)
            self._end.streams.add(stream)
        if replay_began:
            replay_began.tell(self)
        if self._replay_start_hooks:
            self._replay_start_hooks.call(self)
        try:
            self._launch(recording, queue)
        finally:
            if replayed:
                replayed.tell(self)
            if self._replay_end_hooks:
                self._replay_end_hooks.call(self)

    def _launch(self, recording: Recording, queue: Queue) -> None:
        within = capture_state.capture_of(queue) if capture_state.under_way else None
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        recording.launch(
            queue,
            [
                generator.take(words) if within is None else within.draw(generator, words)
                for generator, words in self._sources
            ],
        )
        if tracer:
            tracer.queued(queue, begun, "graph", self._title, 0, None, 1)

    def reset(self) -> None:
        """Let go of what was recorded, or is being recorded, and of its memory; another capture can begin."""
        self._end.come()
        self._finalizer.detach()
        self._abandon()
        self._begin_anew()

    def _release(self) -> None:
        opened, recording = self._opened, self._recording
        pools, self._pools = self._pools, []
        self._recording, self._exec, self._template = None, 0, False
        if opened is None:
            return
        if recording is not None and not opened.gone:
            for stream in self._replayed:  # a replay may still be queued there; at exit the queues are closed
                with suppress(WrongState), opened.keeping(stream.queue, recording):
                    pass
        for pool in pools:
            opened.allocator.private.leave(pool)

    def __del__(self) -> None:
        if getattr(self, "_pools", None):
            self._abandon()

    # Memory

    def pool(self) -> PoolId:
        """The pool that its memory is from, for another graph's `capture_begin`."""
        if self._recording is None:
            raise RuntimeError(f"Called {self.name}::pool() without a preceding successful capture.")
        return self._pools[0]

    def pools(self) -> list[PoolId]:
        """That one, and those that it keeps besides."""
        if self._recording is None:
            raise RuntimeError(f"Called {self.name}::pools() without a preceding successful capture.")
        return list(self._pools)

    def _retain_pool(self, pool: PoolId | MemPool | None) -> None:
        """Keep the memory of that pool as long as the graph. Only during the capture."""
        found = pool_id(pool)
        if pool is None:
            raise RuntimeError(f"{self.name}._retain_pool expected a memory pool")
        if self._capture is None or self._opened is None:
            raise RuntimeError(f"{self.name}::retain_pool may only be called during capture.")
        if found is None:
            raise RuntimeError(f"{self.name}::retain_pool expected a non-default memory pool.")
        if found not in self._pools:
            self._opened.allocator.private.make(found)
            self._pools.append(found)

    # What it is

    def enable_debug_mode(self) -> None:
        """Keep what will be recorded, as with `keep_graph`."""
        self._keep_graph = True

    def debug_dump(self, debug_path: str, *, verbose: bool = True) -> None:
        """Write what was recorded to that file, in Graphviz's language DOT; with all numbers if `verbose`."""
        self.raw_cuda_graph()
        Path(debug_path).write_text(graph_export.dot(self.work, verbose=verbose), encoding="utf-8")

    def raw_cuda_graph(self) -> int:
        """What tells what was recorded from all else in this process."""
        if self._recording is None or not self._template:
            raise RuntimeError(
                "No cudaGraph_t is available: either capture_end() has not been called, or the underlying cudaGraph_t "
                "was destroyed (keep_graph=false, and capture has been finalized)."
            )
        return id(self._recording)

    def raw_cuda_graph_exec(self) -> int:
        """What tells what can be replayed from all else in this process, until `instantiate` makes another."""
        if not self._exec:
            raise RuntimeError("You cannot access the raw cudaGraphExec_t instance until instantiate() has been called")
        return self._exec

    def get_graph_data(self) -> dict[str, Any]:
        """What was recorded, as a dictionary: `exec_graph_id`, `nodes` and `edges`."""
        self.raw_cuda_graph()
        return graph_export.table(self.work, self.raw_cuda_graph_exec())

    @property
    def work(self) -> list[Any]:
        """What was recorded, in its order: `forebay.spi.Recorded`."""
        return [] if self._recording is None else list(self._recording.work)


def capturing_graph(kind: str | None = None) -> Any:
    """The graph that this thread's work on the kind's current device goes to. RuntimeError where it goes to none."""
    capture = stream_of(current.opened_for(kind)).capture
    found = None if capture is None else capture.owner()
    if found is None:
        raise RuntimeError("The current stream is not currently capturing.")
    return found


def pool_id(pool: Any) -> PoolId | None:
    """The pool that is meant; None for (0, 0), which is none. TypeError, RuntimeError for what cannot be one."""
    found = pool.id if isinstance(pool, MemPool) else pool
    if found is None:
        return None
    if not (isinstance(found, tuple) and len(found) == 2 and all(type(number) is int for number in found)):
        raise TypeError(f"a memory pool is a MemPool or the two ints of its id, not {found!r}")
    if found[0] and found[1]:
        raise RuntimeError(f"{found} is the id of no memory pool: one of the two numbers is 0")
    return found if any(found) else None
