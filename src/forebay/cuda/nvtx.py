"""Named ranges and marks for profilers (`torch.cuda.nvtx`).

They are passed to NVTX if its package is installed and a profiler is attached, and to the tools attached to
`forebay.observe.ranges.ranges`, which can also record them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from forebay.cuda._kind import CUDA
from forebay.errors import Unsupported
from forebay.observe.ranges import ranges
from forebay.runtime.base import observers
from forebay.runtime.base.queue_capabilities import can_launch

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


# Written by tools/write_names.py from tools/names/nvtx.toml: edit the table, not these lines.


def range_push(msg: str) -> int:
    """Begin a nested range in this thread, and return its depth, from 0; -2 if no tool is attached.

    As `torch.cuda.nvtx.range_push`. Does not initialise CUDA.

    Parameters
    ----------
    msg : str or bytes
        The range's name.

    Raises
    ------
    TypeError
        If `msg` is not a string, or cannot be encoded in UTF-8.
    """
    return ranges.push(_text(msg, "range_push"))


def range_pop() -> int:
    """End this thread's innermost range, and return its depth; -2 if no tool is attached or no range is open.

    As `torch.cuda.nvtx.range_pop`. Does not initialise CUDA.
    """
    return ranges.pop()


def range_start(msg: str) -> int:
    """Begin a range that any thread can end, and return its number for `range_end`; 0 if no tool is attached.

    As `torch.cuda.nvtx.range_start`. Does not initialise CUDA.

    Parameters
    ----------
    msg : str or bytes
        The range's name.

    Raises
    ------
    TypeError
        If `msg` is not a string, or cannot be encoded in UTF-8.
    """
    return ranges.start(_text(msg, "range_start"))


def range_end(range_id: int) -> None:
    """End a range that `range_start` began.

    As `torch.cuda.nvtx.range_end`. Does not initialise CUDA.

    Parameters
    ----------
    range_id : int
        The range's number; an unknown number is ignored.

    Raises
    ------
    TypeError
        If `range_id` is not an unsigned 64-bit integer.
    """
    if not isinstance(range_id, int) or not 0 <= range_id < 1 << 64:
        raise TypeError(f"range_end() expects the number that range_start() returned, not {range_id!r}")
    ranges.end(range_id)


def mark(msg: str) -> None:
    """Mark the current time with a name.

    As `torch.cuda.nvtx.mark`. Does not initialise CUDA.

    Parameters
    ----------
    msg : str or bytes
        The name.

    Raises
    ------
    TypeError
        If `msg` is not a string, or cannot be encoded in UTF-8.
    """
    ranges.mark(_text(msg, "mark"))


# End of the written lines.


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: A001 -- PyTorch's name
    """Run the body of a `with` statement, or each call of a decorated function, in a nested range.

    As `torch.cuda.nvtx.range`. Does not initialise CUDA.

    Parameters
    ----------
    msg : str
        The range's name, a format string.
    *args : object
        Arguments of `msg.format`.
    **kwargs : object
        Arguments of `msg.format`.

    Examples
    --------
    >>> from forebay.cuda import nvtx
    >>> from forebay.observe.ranges import ranges
    >>> with ranges.recorded() as found:
    ...     with nvtx.range("step {}", 1):
    ...         pass
    >>> [each.name for each in found]
    ['step 1']
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


class _DeviceRange:
    number = 0


def _device_range_start(msg: str, stream: int = 0) -> object:
    """Begin a range when the work queued so far on a stream of the current device is done.

    Returns the handle for `_device_range_end`.
    """
    name, device_range = _text(msg, "_device_range_start"), _DeviceRange()

    def begin() -> None:
        device_range.number = ranges.start(name)

    _queue_call(stream, begin)
    return device_range


def _device_range_end(range_handle: object, stream: int = 0) -> None:
    """End the range when the work queued so far on the stream is done."""
    if not isinstance(range_handle, _DeviceRange):
        raise TypeError(f"_device_range_end() expects the result of _device_range_start(), not {range_handle!r}")
    _queue_call(stream, lambda: ranges.end(range_handle.number))


def _queue_call(handle: int, function: Any) -> None:
    opened = CUDA.open_device()
    queue = opened.queue_with_handle(handle)
    if queue is None:
        raise ValueError(f"{handle:#x} is not the handle of a stream of {opened.device}")
    if not can_launch(queue):
        raise Unsupported(f"the queues of {opened.device} cannot run host functions", ability="Launches")
    tracer = observers.tracer
    begun = tracer.queueing(queue) if tracer else None
    queue.call(function)
    if tracer:
        tracer.queued(queue, begun, "call", "nvtx")


def _text(msg: object, function: str) -> str:
    """Return a name that NVTX accepts (a string, bytes, or None for no name) as a string."""
    if isinstance(msg, bytes):
        return msg.decode(errors="replace")
    if msg is None:
        return ""
    if not isinstance(msg, str):
        raise TypeError(f"{function}() expects a string, not {type(msg).__name__}")
    try:
        msg.encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"{function}() expects a string that can be encoded in UTF-8: {error}") from None
    return msg
