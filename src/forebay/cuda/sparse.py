"""Products of sparse matrices of blocks with dense ones, also as named operations.

What PyTorch registers with its dispatcher at the first use of CUDA is in `operations` then: by forebay's own way of
computing, or by PyTorch's Triton kernels where the device is real and Triton is installed. (`torch.cuda.sparse`)
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay import backends
from forebay.cuda._kind import CUDA
from forebay.runtime.tensors import bsr as own
from forebay.runtime.tensors.bsr import BsrTensor, bsr_dense_addmm, bsr_dense_mm
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["BsrTensor", "Operation", "bsr_dense_addmm", "bsr_dense_mm", "operations"]


class _WrappedTritonKernel:
    """A kernel that remembers whether it ran. (`torch.cuda._WrappedTritonKernel`)"""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel = kernel
        self.kernel_invoked = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.kernel(*args, **kwargs)
        self.kernel_invoked = True
        return result


@dataclass(frozen=True)
class Operation:
    """A function with the schema and the dispatch key under which PyTorch knows it."""

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
    """Once; CUDA's first use does it. (`torch.cuda._register_triton_kernels`)"""
    for name, schema in _SCHEMAS.items():

        def kernel(*args: Any, name: str = name, **kwargs: Any) -> Any:
            return _implementation(name)(*args, skip_checks=True, **kwargs)

        operations.setdefault(f"_triton_{name}_out", Operation(schema, "SparseCsrCUDA", _WrappedTritonKernel(kernel)))


def _implementation(name: str) -> Callable[..., Any]:
    if CUDA.describe().emulated or importlib.util.find_spec("triton") is None:
        found: Callable[..., Any] = getattr(own, name)
        return found
    kernel = getattr(importlib.import_module("torch.sparse._triton_ops"), name)

    def on_hardware(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        kernel(*map(_lent, args), out=_lent(out), **kwargs)
        return out

    return on_hardware


def _lent(each: Any) -> Any:
    """The same memory as PyTorch's tensor."""
    import torch

    if isinstance(each, BsrTensor):
        return torch.sparse_bsr_tensor(*map(torch.from_dlpack, each.parts()), size=each.shape)
    return torch.from_dlpack(each)


CUDA.initialisation.call(_register_triton_kernels)
