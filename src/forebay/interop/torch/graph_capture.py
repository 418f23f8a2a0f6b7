"""Capture of operators on emulated devices in CUDA graphs.

A captured operator runs once, to know its results, which are allocated from the graph's pool. What it writes into older
memory is undone at the end of the capture. Its replay is a function in the queue: it runs the kernel again on tensors
over the same values, and copies new results into the values of the captured ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

import forebay.cuda
from forebay.interop.torch import emulated_memory, values
from forebay.interop.torch.emulated_memory import EmulatedMemory, memory_of, open_torch_device, shadow
from forebay.runtime.base import capture_state
from forebay.runtime.base.queue_capabilities import can_launch
from forebay.runtime.streams.stream import current_stream_for

__all__ = ["TorchGraph", "capturable"]


class _Thread(threading.local):
    inside = False  # an operator that another one calls is a part of it


_thread = _Thread()
_written: dict[EmulatedMemory, torch.UntypedStorage | None] = {}  # by memory: the values before the capture, if older


class TorchGraph(forebay.cuda.CUDAGraph):
    """`torch.cuda.CUDAGraph` of an emulated device."""

    def capture_end(self) -> None:
        """End the capture, and restore what the captured operators have written into older memory."""
        try:
            super().capture_end()
        finally:
            for memory, before in _written.items():
                if before is not None:
                    memory.values.copy_(before)
            _written.clear()

    def replay(self) -> None:
        """Run the captured work, and wait for it: the operators of emulated devices do not wait for queues."""
        super().replay()
        forebay.cuda.current_stream().synchronize()


def capturable(kernel: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """Return a kernel that records its calls in a graph while one is captured.

    Parameters
    ----------
    kernel : callable
        The kernel.
    written : sequence of int
        Positions of the arguments that it writes.

    Returns
    -------
    callable
        The kernel with recording.
    """

    def run(*args: Any, **keywords: Any) -> Any:
        if not capture_state.active or _thread.inside or not values.is_computed():
            return kernel(*args, **keywords)
        device = _device(args) or _device(keywords.values()) or keywords.get("device")
        queue = current_stream_for(open_torch_device(device if isinstance(device, torch.device) else None)).queue
        if capture_state.capture_of(queue) is None or not can_launch(queue):
            return kernel(*args, **keywords)
        return _capture(kernel, args, keywords, written, queue.call)

    return run


def _capture(
    kernel: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], written: Sequence[int],
    queue: Callable[[Callable[[], object]], None],
) -> Any:  # fmt: skip
    for position, each in enumerate((*args, *keywords.values())):
        if position in written or position >= len(args):
            _keep_values(each)
    given, named = _shadows(args), {name: _shadows(each) for name, each in keywords.items()}
    _thread.inside = True
    try:
        with emulated_memory.logged() as made:
            result = kernel(*args, **keywords)
    finally:
        _thread.inside = False
    for memory in made:
        _written[memory] = None
    results = [memory.values for memory in made]

    def replay() -> None:
        with emulated_memory.replaying(results):
            kernel(*given, **named)

    queue(replay)
    return result


def _keep_values(argument: Any) -> None:
    if isinstance(argument, torch.Tensor):
        if argument.is_cuda and (memory := memory_of(argument)) not in _written:
            _written[memory] = memory.values.clone()
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            _keep_values(each)


def _shadows(argument: Any) -> Any:
    """Return the argument with tensors over the same values, which do not keep the device's memory allocated."""
    if isinstance(argument, torch.Tensor):
        return shadow(argument) if argument.is_cuda else argument
    if isinstance(argument, (list, tuple)):
        return type(argument)([_shadows(each) for each in argument])
    return argument


def _device(arguments: Any) -> torch.device | None:
    for each in arguments:
        if isinstance(each, torch.Tensor):
            if each.is_cuda:
                return each.device
        elif isinstance(each, (list, tuple)) and (found := _device(each)) is not None:
            return found
    return None
