"""The kind that this face is of."""

from __future__ import annotations

from forebay.faces.kind import Kind

__all__ = ["CUDA", "DeferredCudaCallError"]


class DeferredCudaCallError(Exception):
    """A call that waited for the first use of CUDA failed then. (`torch.cuda.DeferredCudaCallError`)"""


CUDA = Kind("cuda", deferred_error=DeferredCudaCallError)
