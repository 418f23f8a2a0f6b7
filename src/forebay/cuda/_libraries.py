"""Names of `forebay.cuda` that need NVIDIA's libraries, and so raise Unsupported."""

from __future__ import annotations

from typing import Final

from forebay.names.unsupported import unsupported

__all__ = ["_compile_kernel", "current_blas_handle", "current_solver_handle"]

current_blas_handle: Final = unsupported("forebay.cuda", "current_blas_handle()")
current_solver_handle: Final = unsupported("forebay.cuda", "current_solver_handle()")
_compile_kernel = unsupported(
    "forebay.cuda",
    "_compile_kernel(kernel_source, kernel_name, compute_capability=None, cuda_include_dirs=None, nvcc_options=None)",
)
