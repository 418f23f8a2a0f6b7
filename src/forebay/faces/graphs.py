"""Capturing graphs the short way: a context manager, and functions that replay what they did once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from forebay.faces.kind import Kind
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.base import capture_state
from forebay.runtime.devices import current, open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.graphs.graph import Graph, pool_id
from forebay.runtime.memory.mem_pool import MemPool, new_id
from forebay.runtime.streams.stream import Stream, stream_of
from forebay.runtime.tensors.tensor import Tensor
from forebay.spi import PinnedHost

__all__ = ["CaptureContext", "GraphContext", "graphed", "is_capturing", "make_room"]

_OPTIONS: dict[str, tuple[Any, tuple[Any, ...] | None]] = {  # each with its default, and what else it may be
    "backend": ("auto", ("auto", "cupti", "edge_walk")),
    "key_by": ("exec", ("exec", "source", "auto")),
    "record_py_stacks": (False, (False, True)),
    "py_stack_filter_paths": (None, None),
}


def is_capturing(kind: Kind) -> bool:
    """Whether this thread's current stream is captured. Initialises and opens nothing."""
    if not capture_state.under_way:
        return False
    opened = open_device.opened_if(kind.named(current.current_index(kind.name)))
    return opened is not None and stream_of(opened).is_capturing()


def make_room(opened: OpenDevice) -> None:
    """Wait for the device, and give back what it does not need."""
    opened.synchronize()
    opened.allocator.empty()
    if isinstance(opened.port, PinnedHost):
        opened.pinned.empty()


class CaptureContext(ABC):
    """What is queued inside is captured, by this thread, on the stream or on one of the kind's choice.

    Waits for the device first, and empties its cache.
    """

    default_capture_stream: ClassVar[Stream | None] = None
    kind: ClassVar[Kind]

    @staticmethod
    @abstractmethod
    def new_stream() -> Stream:
        """On the current device of the kind: what all contexts capture that are given none."""

    @staticmethod
    @abstractmethod
    def stream_context(stream: Any) -> AbstractContextManager[Any]:
        """The stream is current inside."""

    @abstractmethod
    def begin(self, pool: Any) -> None:
        """Begin the capture on the current stream, with the pool's memory or, for None, with new."""

    @abstractmethod
    def end(self) -> None:
        """End it."""

    def __init__(self, pool: PoolId | MemPool | None, stream: Stream | None) -> None:
        cls = type(self)
        if cls.default_capture_stream is None or cls.default_capture_stream.opened.gone:
            cls.default_capture_stream = cls.new_stream()
        chosen = cls.default_capture_stream if stream is None else stream
        if chosen is None:
            raise AssertionError("capture_stream must not be None")
        self.pool = () if pool is None else (pool,)
        self.capture_stream = chosen
        self.stream_ctx = cls.stream_context(chosen)

    def __enter__(self) -> None:
        make_room(self.kind.opened())
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
    """The same with all that CUDA's has. No device has a profiler in its driver, so of `annotation_config` only what
    needs none does something. ValueError for an option that there is not.
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
            _refuse_profilers(self._annotation_config)
        self.cuda_graph.capture_begin(pool, self.capture_error_mode, self.check_input_liveness)
        if self._enable_annotations:
            self.cuda_graph.annotate()

    def end(self) -> None:
        self.cuda_graph.capture_end()


def _options(config: dict[str, Any] | None) -> dict[str, Any]:
    chosen = {name: default for name, (default, _) in _OPTIONS.items()}
    unknown = sorted(set(config or ()) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"unrecognized annotation_config key(s) {unknown}; supported: {sorted(_OPTIONS)}")
    for name, value in (config or {}).items():
        allowed = _OPTIONS[name][1]
        if allowed is not None and value not in allowed:
            raise ValueError(f"annotation_config[{name!r}] must be one of {list(allowed)}, got {value!r}")
        if allowed is None and value is not None:
            texts = isinstance(value, (list, tuple)) and all(isinstance(path, str) and path for path in value)
            if not texts:
                raise ValueError(f"annotation_config[{name!r}] must be None or a list/tuple of nonempty path strings")
        chosen[name] = tuple(value) if isinstance(value, list) else value
    if chosen["record_py_stacks"] and chosen["backend"] == "edge_walk":
        raise ValueError("record_py_stacks=True requires the CUPTI annotation backend")
    return chosen


def _refuse_profilers(options: dict[str, Any]) -> None:
    if options["key_by"] == "source":
        raise RuntimeError(
            "annotation_config={'key_by': 'source'} needs a consumer that reads CUPTI's sourceGraphNodeId, and "
            "there is none. Use 'auto' to fall back to the exec graph instead."
        )
    stacks = options["record_py_stacks"]
    if stacks or options["backend"] == "cupti":
        reason = "record_py_stacks=True" if stacks else "backend='cupti'"
        raise RuntimeError(f"{reason} could not register CUPTI node-creation callbacks: no device has them.")


def graphed(
    context: type[GraphContext],
    new_graph: Callable[[], Graph],
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int,
    pool: PoolId | MemPool | None,
    capture_error_mode: str,
    enable_annotations: bool,
) -> Any:
    """The callables, each as the replay of what it does with its sample arguments; one, or a tuple."""
    several = isinstance(callables, tuple)
    functions = callables if several else (callables,)
    samples = sample_args if several else (sample_args,)
    inputs = [list(_leaves(args)) for args in samples]
    if not all(isinstance(leaf, Tensor) for leaves in inputs for leaf in leaves):
        raise AssertionError(
            "In the beta API, sample_args for each callable must contain only Tensors. Other types are not allowed."
        )
    shared = pool_id(pool) or new_id()
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
            shared if not isinstance(pool, MemPool) else pool,
            stream,
            capture_error_mode,
            enable_annotations=enable_annotations,
        ):
            outputs = function(*args)
        made.append(_Graphed(graph, static, outputs))
    return tuple(made) if several else made[0]


class _Graphed:
    """A function that was captured: it copies its arguments to where they were then, and replays."""

    def __init__(self, graph: Graph, inputs: list[Any], outputs: Any) -> None:
        self._graph, self._inputs, self._outputs = graph, inputs, outputs

    def __call__(self, *user_args: Any) -> Any:
        given = list(_leaves(user_args))
        if len(given) != len(self._inputs):
            raise TypeError(f"captured with {len(self._inputs)} tensors as arguments, called with {len(given)}")
        for static, leaf in zip(self._inputs, given, strict=True):
            if not isinstance(leaf, Tensor) or static.data_ptr() != leaf.data_ptr():
                static.copy_(leaf)
        self._graph.replay()
        return _rebuilt(self._outputs)


def _leaves(tree: Any) -> Iterator[Any]:
    """What is no tuple, list or dict, in order."""
    if isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _leaves(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from _leaves(part)
    else:
        yield tree


def _rebuilt(tree: Any) -> Any:
    """The same with new objects for the tensors, which share the memory."""
    if isinstance(tree, Tensor):
        return tree[...]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(_rebuilt, tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(_rebuilt, tree))
    if isinstance(tree, dict):
        return {key: _rebuilt(part) for key, part in tree.items()}
    return tree
