"""Conditional nodes: parts of a graph executed only if, or while, a bool on the device is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from forebay.runtime.devices import current
from forebay.runtime.streams.stream import Stream, current_stream_for
from forebay.runtime.tensors.tensor import Tensor

if TYPE_CHECKING:
    from forebay.runtime.base.capture_state import Capture

__all__ = ["ConditionalNodes"]


class ConditionalNodes:
    """Mixin of Graph that captures conditional nodes. Their bodies cannot call Python functions or draw randoms."""

    _capture: Capture | None

    kind: ClassVar[str | None] = None  # the device kind the graph is for; None: the current one

    @classmethod
    def _stream(cls) -> Stream:
        """Return this thread's current stream on the current device of the kind."""
        return current_stream_for(current.opened_for(cls.kind))

    def begin_capture_to_if_node(self, scalar_cuda_pred_tensor: Tensor) -> None:
        """Begin the body of an if node, which a replay executes if the predicate is true at that point.

        As `torch.cuda.CUDAGraph.begin_capture_to_if_node`. `end_capture_to_conditional_node` ends the body.

        Parameters
        ----------
        scalar_cuda_pred_tensor : Tensor
            A bool tensor with one element.

        Raises
        ------
        RuntimeError
            If no capture is active or the predicate is not a bool tensor with one element.
        """
        with self._conditional(scalar_cuda_pred_tensor) as (capture, address):
            capture.recording.begin_if(self._stream().queue, address)

    def begin_capture_to_while_node(self, scalar_cuda_pred_tensor: Tensor) -> None:
        """Begin the body of a while node, which a replay repeats while the predicate is true.

        As `torch.cuda.CUDAGraph.begin_capture_to_while_node`. The body must end with
        `set_conditional_handle_for_current_node`, which reads the predicate for the next iteration.

        Parameters
        ----------
        scalar_cuda_pred_tensor : Tensor
            A bool tensor with one element, read before the first iteration.

        Raises
        ------
        RuntimeError
            If no capture is active or the predicate is not a bool tensor with one element.
        """
        with self._conditional(scalar_cuda_pred_tensor) as (capture, address):
            capture.recording.begin_while(self._stream().queue, address)

    def set_conditional_handle_for_current_node(self, scalar_cuda_pred_tensor: Tensor) -> None:
        """Repeat the body of the current while node if the predicate is true at that point.

        As `torch.cuda.CUDAGraph.set_conditional_handle_for_current_node`.

        Parameters
        ----------
        scalar_cuda_pred_tensor : Tensor
            A bool tensor with one element.

        Raises
        ------
        RuntimeError
            If no conditional node is active or the predicate is not a bool tensor with one element.
        """
        _require_tensor(scalar_cuda_pred_tensor)
        capture = self._require_body("No active CUDA graph conditional node.")
        capture.recording.update_condition(self._stream().queue, _bool_address(scalar_cuda_pred_tensor))

    def end_capture_to_conditional_node(self) -> None:
        """End the body of the current conditional node.

        As `torch.cuda.CUDAGraph.end_capture_to_conditional_node`.

        Raises
        ------
        RuntimeError
            If no conditional node is active.
        """
        capture = self._require_body("Missing capture ID for conditional node.")
        capture.recording.end_body(self._stream().queue)
        capture.bodies -= 1

    @contextmanager
    def _conditional(self, predicate: Tensor) -> Iterator[tuple[Capture, int]]:
        _require_tensor(predicate)
        if self._capture is None:
            raise RuntimeError("capture_begin() must be called before begin_capture_to_conditional_node()")
        yield self._capture, _bool_address(predicate)
        self._capture.bodies += 1

    def _require_body(self, message: str) -> Capture:
        if self._capture is None or not self._capture.bodies:
            raise RuntimeError(message)
        return self._capture


def _require_tensor(predicate: object) -> None:
    if not isinstance(predicate, Tensor):
        raise TypeError(f"argument 'scalar_cuda_pred_tensor' must be a Tensor, not {type(predicate).__name__}")


def _bool_address(predicate: Tensor) -> int:
    if predicate.numpy_dtype.kind != "b" or predicate.numel() != 1:
        raise RuntimeError(f"a predicate must be a bool tensor with one element, not {predicate!r}")
    return predicate.raw_address()
