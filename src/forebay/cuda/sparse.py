"""Products of block-sparse (BSR) and dense matrices, also as named operations (`torch.cuda.sparse`).

The first use of CUDA adds the operations that PyTorch registers with its dispatcher to `operations`. They use forebay's
implementation, or PyTorch's Triton kernels if the device is real and Triton is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.cuda._kind import CUDA
from forebay.runtime.tensors import bsr as forebay_bsr
from forebay.runtime.tensors.bsr import BsrTensor, bsr_dense_addmm, bsr_dense_mm
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["BsrTensor", "Operation", "bsr_dense_addmm", "bsr_dense_mm", "operations"]


class _WrappedTritonKernel:
    """A kernel with a flag that is set once a call succeeds (`torch.cuda._WrappedTritonKernel`)."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel = kernel
        self.kernel_invoked: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.kernel(*args, **kwargs)
        self.kernel_invoked = True
        return result


@dataclass(frozen=True)
class Operation:
    """A function with the schema and the dispatch key of its registration in PyTorch.

    Parameters
    ----------
    schema : str
        PyTorch's function schema.
    dispatch_key : str
        PyTorch's dispatch key.
    implementation : callable
        The function that a call runs.
    """

    schema: str
    dispatch_key: str
    implementation: _WrappedTritonKernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.implementation(*args, **kwargs)


operations: dict[str, Operation] = {}

_SCHEMAS = {
    "bsr_dense_mm": "_triton_bsr_dense_mm_out(Tensor bsr, Tensor dense, *, Tensor(a!) out) -> Tensor(a!)",
    "bsr_dense_addmm": "_triton_bsr_dense_addmm_out(Tensor input, Tensor bsr, Tensor dense, *, Scalar beta, "
    "Scalar alpha, Tensor(a!) out) -> Tensor(a!)",
}


def _register_triton_kernels() -> None:
    """Add the operations, once; CUDA's first use calls this (`torch.cuda._register_triton_kernels`)."""
    for name, schema in _SCHEMAS.items():

        def kernel(*args: Any, name: str = name, **kwargs: Any) -> Any:
            return _implementation(name)(*args, skip_checks=True, **kwargs)

        operations.setdefault(f"_triton_{name}_out", Operation(schema, "SparseCsrCUDA", _WrappedTritonKernel(kernel)))


def _implementation(name: str) -> Callable[..., Any]:
    if CUDA.describe().emulated or importlib.util.find_spec("triton") is None:
        function: Callable[..., Any] = getattr(forebay_bsr, name)
        return function
    kernel = getattr(importlib.import_module("torch.sparse._triton_ops"), name)

    def triton_kernel(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        kernel(*map(_as_torch_tensor, args), out=_as_torch_tensor(out), **kwargs)
        return out

    return triton_kernel


def _as_torch_tensor(each: Any) -> Any:
    """Return a PyTorch tensor that shares the memory."""
    import torch

    if isinstance(each, BsrTensor):
        return torch.sparse_bsr_tensor(*map(torch.from_dlpack, each.parts()), size=each.shape)
    return torch.from_dlpack(each)


CUDA.initialisation.call(_register_triton_kernels)
