"""Graphs: the work of a stream, captured once and replayed any number of times."""

from __future__ import annotations

import warnings
import weakref
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from forebay.backends.common._disposal import Disposable
from forebay.backends.common.cuda_errors import ILLEGAL_STATE
from forebay.errors import DeviceError, ForebayError, Unsupported, WrongState
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.capture_state import Capture
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.base.queue_capabilities import can_capture
from forebay.runtime.devices import current
from forebay.runtime.graphs import annotations as graphs_annotations
from forebay.runtime.graphs import graph_export
from forebay.runtime.graphs.conditional_nodes import ConditionalNodes
from forebay.runtime.graphs.graph_hooks import (
    GraphHooks,
    capture_began,
    captured,
    instantiated,
    replay_began,
    replayed,
)
from forebay.runtime.graphs.input_liveness import InputLiveness
from forebay.runtime.memory.mem_pool import MemPool
from forebay.runtime.memory.storage import AnyBlock, allocate_block
from forebay.runtime.streams.stream import Stream, current_stream_for, default_stream_for
from forebay.spi import CapturedGraph, Queue

if TYPE_CHECKING:
    from forebay.runtime.allocator._reservations import PoolUser
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.runtime.random.philox_state import PhiloxState

__all__ = ["Graph", "capturing_graph", "pool_id"]

_MODES = ("global", "thread_local", "relaxed")
_pool_numbers = count(1)  # of pools created by captures
_executables = count(1)  # ids of instantiated graphs


class Graph(GraphHooks, ConditionalNodes, Disposable):
    """A graph of captured work, which `replay` executes.

    Work that this thread queues on the current stream between `capture_begin` and `capture_end` is captured instead of
    executed. Memory allocated during the capture comes from a private pool, and stays reserved as long as the graph.
    Each replay draws new random numbers.

    As `torch.cuda.CUDAGraph`.

    Parameters
    ----------
    keep_graph : bool, optional
        Keep the captured work available for inspection after `capture_end`. The user then calls `instantiate`, or the
        first replay does. False by default.

    Examples
    --------
    >>> import forebay
    >>> graph, stream = Graph(), forebay.Stream("cpu")
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

    name: ClassVar[str] = "Graph"  # used in messages
    capture_modes: ClassVar[tuple[str, ...]] = _MODES
    allows_default_stream: ClassVar[bool] = False  # True if the default stream can be captured

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__()
        if keep_graph is not None and not hasattr(keep_graph, "__bool__"):
            raise TypeError(f"argument 'keep_graph' must be bool, not {type(keep_graph).__name__}")
        self._keep_graph = bool(keep_graph)
        self._capture: Capture | None = None  # the active capture
        self._reset_state()
        self._new_finalizer()

    def _reset_state(self) -> None:
        self._opened: OpenDevice | None = None
        self._recording: CapturedGraph | None = None
        self._sources: list[tuple[PhiloxState, int]] = []  # and the words that each replay draws
        self._seeds: list[AnyBlock] = []  # as PyTorch, whose kernels read the seeds and offsets from device memory
        self._hosts: set[OpenDevice] = set()  # see `Capture.hosts`
        self._pools: list[PoolUser] = []
        self._template = False  # the captured work can be inspected
        self._exec = 0  # id of the executable; 0 before `instantiate`
        self._title = ""
        self._replayed: set[Stream] = set()
        self._latest: Stream | None = None
        self._inputs: InputLiveness | None = None
        self._annotations: dict[int, dict[str, Any]] | None = None

    # Capture

    def capture_begin(
        self,
        pool: PoolId | MemPool | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin to capture the work queued on the current stream.

        As `torch.cuda.CUDAGraph.capture_begin`.

        Parameters
        ----------
        pool : tuple of int or MemPool, optional
            Another graph's `pool()`, a `graph_pool_handle()` or a MemPool to share memory with; a new private pool by
            default.
        capture_error_mode : str, optional
            During a "global" capture, which is the default, no thread may wait for devices of the kind or query them.
            With "thread_local" the restriction applies to this thread only, with "relaxed" to the captured streams
            only. A forbidden call breaks the capture and raises DeviceError 900.
        check_input_liveness : bool, optional
            Make `replay` raise RuntimeError if it would use tensors that no longer exist. False by default.

        Raises
        ------
        RuntimeError
            If an argument is invalid, the graph already holds a capture, or the default stream is current.
        DeviceError
            If the current stream is being captured.
        Unsupported
            If the backend does not support graph capture.
        """
        if isinstance(capture_error_mode, bytes):
            capture_error_mode = capture_error_mode.decode()
        if not isinstance(capture_error_mode, str):
            raise TypeError(f"argument 'capture_error_mode' must be str, not {type(capture_error_mode).__name__}")
        pool_id(pool)  # raises TypeError before all other checks
        if capture_error_mode not in self.capture_modes:
            quoted = [f"`{mode}`" for mode in self.capture_modes]
            expected = f"{', '.join(quoted[:-1])}, or {quoted[-1]}"
            raise RuntimeError(f"Unknown capture error mode. Expected {expected}, got {capture_error_mode}")
        if self._recording is not None:
            raise RuntimeError(
                f"This {self.name} instance already owns a captured graph. To capture a new graph, create a new "
                "instance."
            )
        stream = self._stream()
        if not self.allows_default_stream and stream == default_stream_for(stream.opened):
            raise RuntimeError(
                f"{stream.opened.device.kind.upper()} graphs must be captured on a non-default stream. (However, after "
                "capture, it's ok to replay them on the default stream.)"
            )
        if not can_capture(stream.queue):
            raise Unsupported(f"{stream.opened.device.kind} does not support graph capture", ability="Captures")
        mode = capture_error_mode if capture_error_mode in _MODES else _MODES[0]
        with ExitStack() as undo:
            self._begin(stream, pool, mode, undo)
            if check_input_liveness and self._capture is not None:
                self._capture.inputs = self._inputs = InputLiveness()
            if capture_began:
                capture_began.notify(self)
            self._capture_start_hooks.call(self)
            undo.pop_all()

    def _begin(self, stream: Stream, pool: PoolId | MemPool | None, mode: str, undo: ExitStack) -> None:
        queue, opened = stream.queue, stream.opened
        if not can_capture(queue) or queue.capture is not None:
            raise capture_state.capture_error(opened.device.kind, ILLEGAL_STATE, "capture_begin")
        if isinstance(pool, MemPool):
            pool.register(opened)
        private_pool = pool_id(pool) or (next(_pool_numbers), 0)
        allocator = opened.allocator
        queues = {queue.handle: queue.reached() if queue.idle() else queue.signal()}
        user = allocator.private.add_user(private_pool)
        undo.callback(self._reset_state)
        undo.callback(allocator.private.end_user, user)
        allocator.begin_capture(private_pool, queues, user=user)
        undo.callback(allocator.end_capture, queues)
        undo.callback(queue.abandon_capture)  # before the capture begins: a signal handler may raise at its end
        recording = queue.begin_capture(mode, queues)
        capture = Capture(opened.device.kind, stream, queue, queues, recording, mode, weakref.ref(self))
        undo.callback(setattr, self, "_capture", None)
        self._opened, self._pools, self._capture = opened, [user], capture
        undo.callback(capture_state.end, capture)
        capture_state.begin(capture)

    def capture_end(self) -> None:
        """End the capture and, without `keep_graph`, instantiate the graph.

        As `torch.cuda.CUDAGraph.capture_end`. After an error the streams are restored and the capture is discarded.

        Raises
        ------
        RuntimeError
            If no capture is active, or the capture began on another stream than the current one.
        DeviceError
            If the capture was broken. If another thread began the capture and its mode is not "relaxed", the capture
            stays active.

        Warns
        -----
        UserWarning
            If the graph is empty.
        """
        self.capture_end_pre()
        if captured:
            captured.notify(self)
        self._capture_end_hooks.call(self)
        if not self._keep_graph:
            self.instantiate()
        self.capture_end_post()

    def capture_end_pre(self) -> None:
        """End the capture, but keep the captured work available for inspection until `capture_end_post`.

        Raises
        ------
        RuntimeError
            If no capture is active, or the capture began on another stream than the current one.
        DeviceError
            If the capture was broken, as in `capture_end`.

        Warns
        -----
        UserWarning
            If the graph is empty.
        """
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
                self._discard()
            raise
        self._detach_capture()
        self._recording, self._template = recording, True
        self._sources = list(capture.drawn.items())
        self._hosts = capture.hosts
        if not recording.work:
            warnings.warn(
                f"The {capture.kind.upper()} Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=3,
            )

    def capture_end_post(self) -> None:
        """Finish the capture that `capture_end_pre` ended: without `keep_graph`, release it for inspection."""
        self._template = self._template and self._keep_graph

    def annotate(self) -> None:
        """Record annotations of the work captured from now on."""
        if self._capture is not None:
            self._capture.annotations = self._annotations = {}

    def add_seed_memory(self) -> None:
        """Allocate memory for a seed and an offset, for the default stream as PyTorch does. Internal to the runtime."""
        if (opened := self._opened) is not None:
            queue = opened.default_queue.handle
            self._seeds += [allocate_block(opened, 8, queue), allocate_block(opened, 8, queue)]

    def _detach_capture(self) -> None:
        """End the active capture, if any. Repeatable."""
        capture = self._capture
        if capture is not None and self._opened is not None:
            capture_state.end(capture)
            self._opened.allocator.end_capture(capture.queues)
        self._capture = None  # at the end: Note [Interrupts arrive late]

    def _discard(self) -> None:
        """Abandon the active capture, if any, and release the captured work and its memory. Repeatable."""
        try:
            if self._capture is not None:
                self._capture.queue.abandon_capture()
        except ForebayError:  # not after an interrupt, which a repetition follows
            self._detach_capture()
            self._release()
            raise
        self._detach_capture()
        self._release()

    # Replay

    def instantiate(self) -> None:
        """Make the captured work replayable.

        As `torch.cuda.CUDAGraph.instantiate`. Without `keep_graph`, `capture_end` calls it.

        Raises
        ------
        RuntimeError
            If no capture has ended, or the graph was created without `keep_graph` and `capture_end` instantiated it.
        """
        if self._recording is None:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if not self._template:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._exec = next(_executables)
        self._title = f"{self.name} {self._exec}"  # in traces
        if self._annotations is not None:
            graphs_annotations.publish(self.ids, self._exec, self.work, self._annotations)
        if instantiated:
            instantiated.notify(self)
        self._instantiate_hooks.call(self)

    @property
    def _has_graph_exec(self) -> bool:
        return self._exec != 0

    def replay(self) -> None:
        """Queue the captured work on the current stream of its device.

        As `torch.cuda.CUDAGraph.replay`. Does not block the host. Replays of one graph run in order, also on different
        streams. A graph without an executable is instantiated first.

        Raises
        ------
        RuntimeError
            If there is no captured work. With `check_input_liveness`, also if an input tensor no longer exists.
        DeviceError
            With code 700 if the graph uses memory that was released to the device.
        """
        if self._inputs is not None:
            self._inputs.check(self.pools())
        if not self._exec:
            self.instantiate()
        recording, opened = self._recording, self._opened
        if recording is None or opened is None:  # a hook reset the graph
            raise RuntimeError(f"Called {self.name}::replay without a preceding successful capture.")
        stream = current_stream_for(opened)
        queue = stream.queue
        if stream is not self._latest:
            self._latest = stream
            self._replayed.add(stream)
            self._finalizer.streams.add(stream)
            for block in self._seeds:
                block.record_stream(stream.handle)
        if replay_began:
            replay_began.notify(self)
        if self._replay_start_hooks:
            self._replay_start_hooks.call(self)
        try:
            self._launch(recording, queue)
        finally:
            if replayed:
                replayed.notify(self)
            if self._replay_end_hooks:
                self._replay_end_hooks.call(self)

    def _launch(self, recording: CapturedGraph, queue: Queue) -> None:
        outer = capture_state.capture_of(queue) if capture_state.active else None
        if outer is not None:
            outer.hosts |= self._hosts
        for host in self._hosts if outer is None else ():  # work on the CPU is done when PyTorch replays
            current_stream_for(host).synchronize()
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        recording.launch(
            queue,
            [state.advance(words) if outer is None else outer.draw(state, words) for state, words in self._sources],
        )
        if tracer:
            tracer.queued(queue, begun, "graph", self._title)

    def reset(self) -> None:
        """Release the captured work and its memory, or abandon the active capture.

        As `torch.cuda.CUDAGraph.reset`. Calls the destroy callbacks. The graph can then capture again.
        """
        self._finalizer.run()
        self._discard()
        self._reset_state()
        self._new_finalizer()

    def _release(self) -> None:
        opened, recording = self._opened, self._recording
        self._seeds = []
        try:
            if opened is not None and recording is not None and not opened.unusable:
                self._keep_for_replays(opened, recording)
        finally:  # also after an interrupt
            if opened is not None:
                for user in self._pools:
                    opened.allocator.private.end_user(user)
        self._recording, self._exec, self._template = None, 0, False
        self._pools = []  # at the end: Note [Interrupts arrive late]

    def _keep_for_replays(self, opened: OpenDevice, recording: CapturedGraph) -> None:
        """Keep the recording until the replays that are queued have completed."""
        for stream in self._replayed:
            # At exit the queues are closed. If a queue cannot be signalled, its next use reports that, and the
            # recording is kept until then.
            with suppress(WrongState, DeviceError):
                if _may_be_busy(stream.queue):  # with a replay
                    with opened.keep_alive(stream.queue, recording):
                        pass

    def _dispose(self) -> None:
        if getattr(self, "_pools", None):
            self._discard()

    # Memory

    def pool(self) -> PoolId:
        """Return the id of the graph's memory pool.

        As `torch.cuda.CUDAGraph.pool`.

        Returns
        -------
        tuple of int
            Two numbers, for another graph's `capture_begin`.

        Raises
        ------
        RuntimeError
            If there is no captured work.
        """
        if self._recording is None:
            raise RuntimeError(f"Called {self.name}::pool() without a preceding successful capture.")
        return self.pools()[0]

    def pools(self) -> list[PoolId]:
        """Return the ids of all memory pools that the graph retains.

        Returns
        -------
        list of tuple
            `pool()`, then other retained pools.

        Raises
        ------
        RuntimeError
            If there is no captured work.
        """
        if self._recording is None:
            raise RuntimeError(f"Called {self.name}::pools() without a preceding successful capture.")
        return [user.pool.id for user in self._pools]

    def _retain_pool(self, pool: PoolId | MemPool | None) -> None:
        """Retain another pool's memory as long as the graph. Valid only during the capture."""
        retained = pool_id(pool)
        if pool is None:
            raise RuntimeError(f"{self.name}._retain_pool expected a memory pool")
        if self._capture is None or self._opened is None:
            raise RuntimeError(f"{self.name}::retain_pool may only be called during capture.")
        if retained is None:
            raise RuntimeError(f"{self.name}::retain_pool expected a non-default memory pool.")
        if all(user.pool.id != retained for user in self._pools):
            self._pools.append(self._opened.allocator.private.add_user(retained))

    # Inspection

    def enable_debug_mode(self) -> None:
        """Keep the captured work available for inspection, as with `keep_graph`.

        As `torch.cuda.CUDAGraph.enable_debug_mode`. Call it before `capture_end`.
        """
        self._keep_graph = True

    def debug_dump(self, debug_path: str, *, verbose: bool = True) -> None:
        """Write the captured work to a file in Graphviz's DOT language.

        As `torch.cuda.CUDAGraph.debug_dump`.

        Parameters
        ----------
        debug_path : str
            The file.
        verbose : bool, optional
            Include all numeric details of each node. True by default.

        Raises
        ------
        RuntimeError
            If the captured work is not available: see `enable_debug_mode`.
        """
        self.raw_cuda_graph()
        Path(debug_path).write_text(graph_export.to_dot(self.work, verbose=verbose), encoding="utf-8")

    def raw_cuda_graph(self) -> int:
        """Return a number that identifies the captured work.

        As `torch.cuda.CUDAGraph.raw_cuda_graph`, which returns a pointer.

        Returns
        -------
        int
            Unique in this process while the captured work exists.

        Raises
        ------
        RuntimeError
            If the captured work is not available: see `keep_graph`.
        """
        if self._recording is None or not self._template:
            raise RuntimeError(
                "No cudaGraph_t is available: either capture_end() has not been called, or the underlying cudaGraph_t "
                "was destroyed (keep_graph=false, and capture has been finalized)."
            )
        return id(self._recording)

    def raw_cuda_graph_exec(self) -> int:
        """Return the id of the executable graph.

        As `torch.cuda.CUDAGraph.raw_cuda_graph_exec`, which returns a pointer.

        Returns
        -------
        int
            Unique in this process; each `instantiate` assigns a new one.

        Raises
        ------
        RuntimeError
            If the graph has not been instantiated.
        """
        if not self._exec:
            raise RuntimeError("You cannot access the raw cudaGraphExec_t instance until instantiate() has been called")
        return self._exec

    def get_graph_data(self) -> dict[str, Any]:
        """Return the nodes and edges of the captured work.

        As `torch.cuda.CUDAGraph.get_graph_data`.

        Returns
        -------
        dict
            `exec_graph_id`, `nodes` and `edges`, without the nodes in bodies of conditional nodes.

        Raises
        ------
        RuntimeError
            If the captured work is not available, or the graph has not been instantiated.

        Warns
        -----
        UserWarning
            If nodes in bodies of conditional nodes are omitted.
        """
        self.raw_cuda_graph()
        return graph_export.node_table(self.work, self.raw_cuda_graph_exec())

    @property
    def work(self) -> list[Any]:
        """The captured work in capture order, as `forebay.spi.CapturedNode` objects."""
        return [] if self._recording is None else list(self._recording.work)


def _may_be_busy(queue: Queue) -> bool:
    """Return False if the queue has no pending work. Asking a queue that is being captured would break the capture."""
    return capture_state.capture_of(queue) is not None or not queue.idle()


def capturing_graph(kind: str | None = None) -> Any:
    """Return the graph that captures this thread's current stream on the kind's current device.

    Raises RuntimeError if the stream is not being captured.
    """
    capture = current_stream_for(current.opened_for(kind)).capture if capture_state.active else None
    graph = None if capture is None else capture.owner()
    if graph is None:
        raise RuntimeError("The current stream is not currently capturing.")
    return graph


def pool_id(pool: Any) -> PoolId | None:
    """Return the id of a MemPool or the given id; None for None and (0, 0). Raises TypeError or RuntimeError."""
    found = pool.id if isinstance(pool, MemPool) else pool
    if found is None:
        return None
    if not (isinstance(found, (tuple, list)) and len(found) == 2) or not all(
        isinstance(number, int) and number >= 0 for number in found
    ):
        raise TypeError(f"a memory pool must be a MemPool or a tuple of two ints, not {found!r}")
    if found[0] and found[1]:
        raise RuntimeError(f"{found} is not a valid memory pool id: one of the two numbers must be 0")
    return (int(found[0]), int(found[1])) if any(found) else None
