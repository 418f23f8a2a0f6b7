"""Ranges and marks for profilers: NVTX's where its package is installed and one listens. (`torch.cuda.nvtx`)

`forebay.observe.ranges.ranges` records them without any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from forebay.cuda._kind import CUDA
from forebay.errors import Unsupported
from forebay.observe.ranges import ranges
from forebay.runtime.base import observers
from forebay.runtime.base.queue_capabilities import launches

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


def range_push(msg: str) -> int:
    """Begin a range inside of this thread's innermost one; its depth from 0 on, or -2 where nobody listens."""
    return ranges.push(_text(msg, "range_push"))


def range_pop() -> int:
    """End this thread's innermost range; its depth, or -2 where nobody listens or none is open."""
    return ranges.pop()


def range_start(msg: str) -> int:
    """Begin a range that any thread may end; its number for `range_end`, or 0 where nobody listens."""
    return ranges.start(_text(msg, "range_start"))


def range_end(range_id: int) -> None:
    """End the range of that number; one that is none means nothing."""
    if not isinstance(range_id, int) or not 0 <= range_id < 1 << 64:
        raise TypeError(f"range_end() takes what range_start() gave, not {range_id!r}")
    ranges.end(range_id)


def mark(msg: str) -> None:
    """A moment with a name."""
    ranges.mark(_text(msg, "mark"))


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: A001 -- PyTorch's name
    """A nested range, named `msg.format(*args, **kwargs)`; as a decorator, each call of the function is one."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


class _DeviceRange:
    number = 0


def _device_range_start(msg: str, stream: int = 0) -> object:
    """Begin a range when the work so far of the current device's stream of that handle is done; gives what ends it."""
    name, started = _text(msg, "_device_range_start"), _DeviceRange()

    def begin() -> None:
        started.number = ranges.start(name)

    _in_queue(stream, begin)
    return started


def _device_range_end(range_handle: object, stream: int = 0) -> None:
    """End the range when the work so far of the stream is done."""
    if not isinstance(range_handle, _DeviceRange):
        raise TypeError(f"_device_range_end() takes what _device_range_start() gave, not {range_handle!r}")
    _in_queue(stream, lambda: ranges.end(range_handle.number))


def _in_queue(handle: int, function: Any) -> None:
    opened = CUDA.opened()
    queue = opened.queues.get(handle)
    if queue is None:
        raise ValueError(f"{handle:#x} is not the handle of a stream of {opened.device}")
    if not launches(queue):
        raise Unsupported(f"{opened.device} runs no host functions in its queues", ability="Launches")
    tracer = observers.tracer
    begun = tracer.queueing(queue) if tracer else None
    queue.call(function)
    if tracer:
        tracer.queued(queue, begun, "call", "nvtx")


def _text(msg: object, who: str) -> str:
    """What NVTX takes: a text, its bytes, or None for no name."""
    if isinstance(msg, bytes):
        return msg.decode(errors="replace")
    if msg is None:
        return ""
    if not isinstance(msg, str):
        raise TypeError(f"{who}() takes a text, not {type(msg).__name__}")
    try:
        msg.encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"{who}() takes a text that can be told in UTF-8: {error}") from None
    return msg
