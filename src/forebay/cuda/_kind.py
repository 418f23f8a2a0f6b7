"""The CUDA device kind."""

from __future__ import annotations

from forebay.names.kind import DeviceKind

__all__ = ["CUDA", "DeferredCudaCallError"]


class DeferredCudaCallError(Exception):
    """A call deferred until CUDA's first use failed when it ran.

    As `torch.cuda.DeferredCudaCallError`. The message contains the stack of the original call.
    """


CUDA = DeviceKind("cuda", deferred_error=DeferredCudaCallError)
