"""Capture of operators on emulated devices in CUDA graphs.

# Note [Captured operators run once]
On a GPU, a captured operator does not run; here its results must be known, and are allocated from the graph's pool. So
it runs, and what it writes into older memory is restored at the end of the capture: a program that captures a training
step must not train. Its replay is a function in the queue, which runs the kernel again on tensors over the same values
and copies new results into the values of the captured ones; their addresses are those of the capture. An operator that
another one calls is a part of it and is not recorded. The values of memory that the capture frees are kept, as the
graph may use them, but not its blocks, which the graph's pool reuses. Without values, an empty function is recorded, so
that the graph has work. Rejected: recording the operators without running them, as their results need shapes and memory
at once.
Test: tests/interop/torch/devices/test_graph_capture.py::test_captured_training_step_is_the_eager_one
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import forebay.cuda
from forebay.interop.torch.devices import emulated_memory, values
from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import explain_host_error, memory_of, open_torch_device, shadow
from forebay.runtime.base import capture_state
from forebay.runtime.base.queue_capabilities import can_launch
from forebay.runtime.streams.stream import current_stream_for

__all__ = ["TorchGraph", "capturable", "run_or_capture"]


class _Thread(threading.local):
    inside = False  # an operator that another one calls is a part of it


_thread = _Thread()
# What captured operators have written, by the address of the values: the values, and a copy of them from before the
# capture if they are older. Memory of the device is not kept: it is free again during the capture.
_written: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage | None]] = {}


class TorchGraph(forebay.cuda.CUDAGraph):
    """`torch.cuda.CUDAGraph` of an emulated device."""

    def capture_end(self) -> None:
        """End the capture, and restore what the captured operators have written into older memory."""
        try:
            super().capture_end()
        finally:
            for written, before in _written.values():
                if before is not None:
                    written.copy_(before)
            _written.clear()

    def replay(self) -> None:
        """Run the captured work, and wait for it: the operators of emulated devices do not wait for queues."""
        super().replay()
        forebay.cuda.current_stream().synchronize()


def capturable(
    kernel: Callable[..., Any], written: Mapping[int, str], waits: Callable[..., bool] | None = None
) -> Callable[..., Any]:
    """Return a kernel that records its calls in a graph while one is captured.

    `written` has the positions and names of the arguments that it writes. `waits` returns True for arguments with which
    the operator waits for the current stream; a capture then fails. Without values, an empty function is recorded, so
    that the graph has work.
    """

    def run(*args: Any, **keywords: Any) -> Any:
        if waits is not None and waits(*args, **keywords):
            current_stream_for(open_torch_device(_device_of(args, keywords))).synchronize()
        if not values.is_computed():
            result = kernel(*args, **keywords)
            if capture_state.active:
                queue = current_stream_for(open_torch_device(_device_of(args, keywords))).queue
                if capture_state.capture_of(queue) is not None and can_launch(queue):
                    queue.call(_do_nothing)
                    forget_values(
                        [result, *(args[at] for at in written if at < len(args)), *keywords.values()], memory_of
                    )
            return result
        if not capture_state.active or _thread.inside:
            try:
                return kernel(*args, **keywords)
            except RuntimeError as error:
                explain_host_error(error, _device_of(args, keywords))
                raise
        queue = current_stream_for(open_torch_device(_device_of(args, keywords))).queue
        if capture_state.capture_of(queue) is None or not can_launch(queue):
            return kernel(*args, **keywords)
        return _capture(kernel, args, keywords, written, queue.call)

    return run


def run_or_capture(function: Callable[[], object], written: Iterable[torch.UntypedStorage]) -> None:
    """Run a function that allocates nothing, and record it in the graph that the current stream captures, if any.

    The function runs again in each replay; `written` are the values that it writes.
    """
    if capture_state.active and not _thread.inside:
        queue = current_stream_for(open_torch_device(None)).queue
        if capture_state.capture_of(queue) is not None and can_launch(queue):
            for each in written:
                _keep_storage(each)
            queue.call(function)
    function()


def _do_nothing() -> None:
    pass


def _capture(
    kernel: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], written: Mapping[int, str],
    queue: Callable[[Callable[[], object]], None],
) -> Any:  # fmt: skip
    for position, name in written.items():
        _keep_values(args[position] if position < len(args) else keywords.get(name))
    given, named = _shadows(args), {name: _shadows(each) for name, each in keywords.items()}
    _thread.inside = True
    try:
        with emulated_memory.logged() as made:
            result = kernel(*args, **keywords)
    finally:
        _thread.inside = False
    results = [memory.values for memory in made]
    _written.update({each._cdata: (each, None) for each in results})

    def replay() -> None:
        with emulated_memory.replaying(results):
            kernel(*given, **named)

    queue(replay)
    return result


def _keep_values(argument: Any) -> None:
    if isinstance(argument, torch.Tensor):
        if argument.is_cuda:
            _keep_storage(memory_of(argument).values)
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            _keep_values(each)


def _keep_storage(older: torch.UntypedStorage) -> None:
    if older._cdata not in _written:
        _written[older._cdata] = older, older.clone()


def _shadows(argument: Any) -> Any:
    """Return the argument with tensors over the same values, which do not keep the device's memory allocated."""
    if isinstance(argument, torch.Tensor):
        return shadow(argument) if argument.is_cuda else argument
    if isinstance(argument, (list, tuple)):
        return type(argument)([_shadows(each) for each in argument])
    return argument


def _device_of(args: tuple[Any, ...], keywords: dict[str, Any]) -> torch.device | None:
    """Return the device on which a kernel runs; None for the current one."""
    found = _device(args) or _device(keywords.values()) or keywords.get("device")
    return found if isinstance(found, torch.device) else None


def _device(arguments: Any) -> torch.device | None:
    for each in arguments:
        if isinstance(each, torch.Tensor):
            if each.is_cuda:
                return each.device
        elif isinstance(each, (list, tuple)) and (found := _device(each)) is not None:
            return found
    return None
