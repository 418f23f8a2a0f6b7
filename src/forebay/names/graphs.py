"""Graph capture as a context manager, and callables captured into graphs (`make_graphed_callables`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from forebay.names.kind import DeviceKind
from forebay.runtime.base import capture_state
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.devices import current, open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.graphs.graph import Graph, pool_id
from forebay.runtime.memory.mem_pool import MemPool, new_id
from forebay.runtime.streams.stream import Stream, current_stream_for
from forebay.runtime.tensors.tensor import Tensor
from forebay.spi import PinnedHost

__all__ = ["CaptureContext", "GraphContext", "capture_callables", "free_cached_memory", "is_capturing"]

_OPTIONS: dict[str, tuple[Any, tuple[Any, ...] | None]] = {  # the default and the allowed values of each
    "backend": ("auto", ("auto", "cupti", "edge_walk")),
    "key_by": ("exec", ("exec", "source", "auto")),
    "record_py_stacks": (False, (False, True)),
    "py_stack_filter_paths": (None, None),
}


def is_capturing(kind: DeviceKind) -> bool:
    """Return True if this thread's current stream is being captured. Neither initialises nor opens a device."""
    if not capture_state.active:
        return False
    opened = open_device.get_open_device(kind.device_at(current.current_index(kind.name)))
    return opened is not None and current_stream_for(opened).is_capturing()


def free_cached_memory(opened: OpenDevice) -> None:
    """Wait for the device and release the cached memory of all devices of its kind."""
    opened.synchronize()
    for each in open_device.open_devices(opened.device.kind).devices:
        each.allocator.empty()
    if isinstance(opened.port, PinnedHost):
        opened.pinned.empty()


class CaptureContext(ABC):
    """Context manager that captures the work queued inside into a graph.

    Entry waits for the device and releases the cached memory of all devices.

    Parameters
    ----------
    pool : tuple of int or MemPool or None
        The memory pool of the graph; None creates one.
    stream : Stream or None
        The stream to capture; None selects a stream that all such contexts share.
    """

    default_capture_stream: ClassVar[Stream | None] = None
    kind: ClassVar[DeviceKind]

    @staticmethod
    @abstractmethod
    def new_stream() -> Stream:
        """Return a stream of the current device, for all contexts without an explicit stream."""

    @staticmethod
    @abstractmethod
    def stream_context(stream: Any) -> AbstractContextManager[Any]:
        """Return a context manager that makes a stream current, and the previous one at its end.

        Parameters
        ----------
        stream : Stream
            The stream.
        """

    @abstractmethod
    def begin(self, pool: Any) -> None:
        """Begin the capture of the current stream.

        Parameters
        ----------
        pool : tuple of int or MemPool or None
            The memory pool of the graph; None creates one.
        """

    @abstractmethod
    def end(self) -> None:
        """End the capture."""

    def __init__(self, pool: PoolId | MemPool | None, stream: Stream | None) -> None:
        cls = type(self)
        if cls.default_capture_stream is None or cls.default_capture_stream.opened.unusable:
            cls.default_capture_stream = cls.new_stream()
        capture_stream = cls.default_capture_stream if stream is None else stream
        if capture_stream is None:
            raise AssertionError("capture_stream must not be None")
        self.pool: tuple[()] | tuple[PoolId | MemPool] = () if pool is None else (pool,)
        self.capture_stream = capture_stream
        self.stream_ctx: AbstractContextManager[Any, bool | None] = cls.stream_context(capture_stream)

    def __enter__(self) -> None:
        free_cached_memory(self.kind.open_device())
        self.stream_ctx.__enter__()
        try:
            self.begin(self.pool[0] if self.pool else None)
        except BaseException as error:
            self.stream_ctx.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, *args: object) -> None:
        try:
            self.end()
        finally:
            self.stream_ctx.__exit__(None, None, None)


class GraphContext(CaptureContext):
    """Context manager that captures the work queued inside into a graph, with the options of `torch.cuda.graph`.

    Entry waits for the device and releases its cached memory.

    Parameters
    ----------
    cuda_graph : CUDAGraph
        The graph.
    pool : tuple of int or MemPool, optional
        The memory pool of the graph; a new one by default.
    stream : Stream, optional
        The stream to capture; by default a stream that all such contexts share.
    capture_error_mode : str, default "global"
        "global", "thread_local" or "relaxed".
    enable_annotations : bool, default False
        Record the annotations of captured operations.
    annotation_config : dict, optional
        Options of the annotations. Options that require a driver profiler (CUPTI) are refused on entry.
    check_input_liveness : bool, default False
        Check at replay that the input tensors still exist.

    Raises
    ------
    ValueError
        If `annotation_config` has an unknown option or value.
    """

    def __init__(
        self,
        cuda_graph: Graph,
        pool: PoolId | MemPool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        annotation_config: dict[str, Any] | None = None,
        check_input_liveness: bool = False,
    ) -> None:
        self._annotation_config = _options(annotation_config)
        super().__init__(pool, stream)
        self.cuda_graph = cuda_graph
        self.capture_error_mode = capture_error_mode
        self._enable_annotations = enable_annotations
        self.check_input_liveness = check_input_liveness

    def begin(self, pool: Any) -> None:
        if self._enable_annotations:
            _reject_profiler_options(self._annotation_config)
        self.cuda_graph.capture_begin(pool, self.capture_error_mode, self.check_input_liveness)
        if self._enable_annotations:
            self.cuda_graph.annotate()

    def end(self) -> None:
        self.cuda_graph.capture_end()


def _options(config: dict[str, Any] | None) -> dict[str, Any]:
    """Return the options with defaults filled in. Raises ValueError, with PyTorch's text, for an invalid one."""
    options = {name: default for name, (default, _) in _OPTIONS.items()}
    unknown = sorted(set(config or ()) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"unrecognized annotation_config key(s) {unknown}; supported: {sorted(_OPTIONS)}")
    for name, value in (config or {}).items():
        allowed = _OPTIONS[name][1]
        if allowed is not None and value not in allowed:
            raise ValueError(f"annotation_config[{name!r}] must be one of {list(allowed)}, got {value!r}")
        if allowed is None and value is not None:
            are_paths = isinstance(value, (list, tuple)) and all(isinstance(path, str) and path for path in value)
            if not are_paths:
                raise ValueError(f"annotation_config[{name!r}] must be None or a list/tuple of nonempty path strings")
        options[name] = tuple(value) if isinstance(value, list) else value
    if options["record_py_stacks"] and options["backend"] == "edge_walk":
        raise ValueError("record_py_stacks=True requires the CUPTI annotation backend")
    return options


def _reject_profiler_options(options: dict[str, Any]) -> None:
    if options["key_by"] == "source":
        raise RuntimeError(
            "annotation_config={'key_by': 'source'} needs a consumer that reads CUPTI's sourceGraphNodeId, and "
            "there is none. Use 'auto' to fall back to the exec graph instead."
        )
    stacks = options["record_py_stacks"]
    if stacks or options["backend"] == "cupti":
        reason = "record_py_stacks=True" if stacks else "backend='cupti'"
        raise RuntimeError(f"{reason} could not register CUPTI node-creation callbacks: no device has them.")


def capture_callables(
    context: type[GraphContext],
    new_graph: Callable[[], Graph],
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int,
    pool: PoolId | MemPool | None,
    capture_error_mode: str,
    enable_annotations: bool,
) -> Any:
    """Capture each callable with its sample arguments; return a callable that replays, or a tuple of them."""
    is_tuple = isinstance(callables, tuple)
    functions = callables if is_tuple else (callables,)
    samples = sample_args if is_tuple else (sample_args,)
    inputs = [list(_leaves(tuple(args))) for args in samples]
    if not all(isinstance(leaf, Tensor) for leaves in inputs for leaf in leaves):
        raise AssertionError(
            "In the beta API, sample_args for each callable must contain only Tensors. Other types are not allowed."
        )
    shared_pool = pool_id(pool) or new_id()
    stream = context.new_stream()
    opened = stream.opened
    opened.synchronize()
    with context.stream_context(stream):
        for function, args in zip(functions, samples, strict=True):
            for _ in range(num_warmup_iters):
                function(*args)
    opened.synchronize()
    made = []
    for function, args, static in zip(functions, samples, inputs, strict=True):
        graph = new_graph()
        with context(
            graph,
            shared_pool if not isinstance(pool, MemPool) else pool,
            stream,
            capture_error_mode,
            enable_annotations=enable_annotations,
        ):
            outputs = function(*args)
        made.append(_Graphed(graph, static, outputs))
    return tuple(made) if is_tuple else made[0]


class _Graphed:
    """A captured callable: copies its arguments to the captured inputs and replays the graph."""

    def __init__(self, graph: Graph, inputs: list[Any], outputs: Any) -> None:
        self._graph, self._inputs, self._outputs = graph, inputs, outputs

    def __call__(self, *user_args: Any) -> Any:
        arguments = list(_leaves(user_args))
        if len(arguments) != len(self._inputs):
            raise TypeError(f"captured with {len(self._inputs)} tensor arguments, called with {len(arguments)}")
        for static, leaf in zip(self._inputs, arguments, strict=True):
            if not isinstance(leaf, Tensor) or static.data_ptr() != leaf.data_ptr():
                static.copy_(leaf)
        self._graph.replay()
        return _with_new_views(self._outputs)


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists and dicts, in order."""
    if isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _leaves(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from _leaves(part)
    else:
        yield tree


def _with_new_views(tree: Any) -> Any:
    """Return the tree with a new view in place of each tensor."""
    if isinstance(tree, Tensor):
        return tree[...]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(_with_new_views, tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(_with_new_views, tree))
    if isinstance(tree, dict):
        return {key: _with_new_views(part) for key, part in tree.items()}
    return tree
