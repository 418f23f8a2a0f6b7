"""Parts of a graph that are done only if a bool on the device is true then, or as long as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from forebay.runtime.devices import current
from forebay.runtime.streams.stream import Stream, stream_of

if TYPE_CHECKING:
    from forebay.runtime.base.capture_state import Capture
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["Conditions"]


class Conditions:
    """What of a graph's capture is about conditions. Their bodies cannot call Python functions, nor draw."""

    _capture: Capture | None

    kind: ClassVar[str | None] = None  # of the devices that the graph is for; None: the current one's

    @classmethod
    def _stream(cls) -> Stream:
        """This thread's on the current device of the kind."""
        return stream_of(current.opened_for(cls.kind))

    def begin_capture_to_if_node(self, scalar_cuda_pred_tensor: Tensor) -> None:
        """What is captured from here to `end_capture_to_conditional_node` is done if the bool is true then."""
        with self._conditional(scalar_cuda_pred_tensor) as (capture, address):
            capture.recording.begin_if(self._stream().queue, address)

    def begin_capture_to_while_node(self, scalar_cuda_pred_tensor: Tensor) -> None:
        """The same, again and again: the body ends with `set_conditional_handle_for_current_node`, which looks anew."""
        with self._conditional(scalar_cuda_pred_tensor) as (capture, address):
            capture.recording.begin_while(self._stream().queue, address)

    def set_conditional_handle_for_current_node(self, scalar_cuda_pred_tensor: Tensor) -> None:
        """The loop goes on if the bool is true then."""
        capture = self._inside()
        capture.recording.set_again(self._stream().queue, _bool_at(scalar_cuda_pred_tensor))

    def end_capture_to_conditional_node(self) -> None:
        """The body is whole."""
        capture = self._inside()
        capture.recording.end_body(self._stream().queue)
        capture.bodies -= 1

    @contextmanager
    def _conditional(self, tensor: Tensor) -> Iterator[tuple[Capture, int]]:
        if self._capture is None:
            raise RuntimeError("capture_begin() must be called before begin_capture_to_conditional_node()")
        yield self._capture, _bool_at(tensor)
        self._capture.bodies += 1

    def _inside(self) -> Capture:
        if self._capture is None or not self._capture.bodies:
            raise RuntimeError("No active CUDA graph conditional node.")
        return self._capture


def _bool_at(tensor: Tensor) -> int:
    if tensor.dtype.kind != "b" or tensor.numel() != 1:
        raise RuntimeError(f"a condition is a bool tensor of one element, not {tensor!r}")
    return tensor.data_ptr()
