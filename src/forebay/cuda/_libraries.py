"""What needs NVIDIA's libraries of operators, for `forebay.cuda` to list."""

from __future__ import annotations

from forebay.faces.unsupported import unsupported

__all__ = ["_compile_kernel", "current_blas_handle", "current_solver_handle"]

_NO_OPERATORS = "a runtime has no {library}, as it computes nothing. Use CuPy's or PyTorch's over the same memory."

current_blas_handle = unsupported(
    "forebay.cuda", "current_blas_handle()", _NO_OPERATORS.format(library="cuBLAS handle")
)
current_solver_handle = unsupported(
    "forebay.cuda", "current_solver_handle()", _NO_OPERATORS.format(library="cuSOLVER handle")
)
_compile_kernel = unsupported(
    "forebay.cuda",
    "_compile_kernel(kernel_source, kernel_name, compute_capability=None, cuda_include_dirs=None, nvcc_options=None)",
    "CUDA C needs NVRTC and a GPU. Use Numba's or CuPy's kernels over the same memory.",
)
