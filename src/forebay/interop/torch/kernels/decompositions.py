"""Decompositions and solutions of linear systems on emulated devices, with what PyTorch allocates around cuSOLVER.

As observed of PyTorch 2.15 over the oracle with libraries in place of cuSOLVER and cuBLAS: copies of matrices, errors
of each matrix (`info`), pointers to the matrices of a batch, and cuBLAS's workspaces. The workspaces that cuSOLVER asks
for are not counted. Values are those of the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.linear_systems import (
    INFO,
    count_of,
    take_factorization,
    take_lu,
    take_lu_solution,
    take_pointers,
    take_product,
    take_triangular,
)
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, give, nbytes_of, values_of

__all__ = ["DECOMPOSITION_KERNELS"]

_aten = torch.ops.aten
_SMALL = 32  # rows and columns of matrices whose singular values are found in batches


def _take_check(scratch: Scratch, given: torch.Tensor) -> None:
    """Take what the question takes whether any matrix has an error."""
    single = given.dim() == 2
    for _ in range(2 if single else 1):
        scratch.take(1)


def _eigh(given: torch.Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Return eigenvalues and vectors. The GPU computes in the memory of the vectors."""
    found, vectors = _aten._linalg_eigh(values_of(given), uplo, compute_v)
    opened = open_torch_device(given.device)
    made = give(vectors, opened) if compute_v else None
    result = adopt(found, opened)
    with Scratch(opened) as scratch:
        if made is None:
            scratch.take(nbytes_of(given))
            made = give(vectors, opened)
        if given.numel():
            scratch.take(count_of(given) * INFO)
            with Scratch(opened) as checks:
                _take_check(checks, given)
    return result, made


_SVD_DRIVERS = (None, "gesvd", "gesvda", "gesvdj")


def _svd(
    given: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return singular values and vectors. Jacobi's method, which is the default, has square matrices of both."""
    if driver not in _SVD_DRIVERS:
        raise RuntimeError(
            f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. Check doc at "
            "https://pytorch.org/docs/stable/generated/torch.linalg.svd.html"
        )
    left, found, right = _aten._linalg_svd(values_of(given), full_matrices, compute_uv)
    opened, count = open_torch_device(given.device), count_of(given)
    rows, columns = given.shape[-2:]
    with Scratch(opened) as scratch:
        results = [give(left, opened), give(right.contiguous(), opened)]
        singular = adopt(found, opened)
        if given.numel():
            scratch.take(count * INFO)
            with Scratch(opened) as copies:
                copies.take(nbytes_of(given))
                if driver == "gesvd":
                    copies.take(nbytes_of(singular))
                    copies.take(count * min(rows, columns) ** 2 * given.itemsize)
                elif not compute_uv:
                    together = max(rows, columns) <= _SMALL
                    for length in (rows, columns):
                        shape = (count, length, length) if together else (length, min(rows, columns))
                        copies.take(math.prod(shape) * given.itemsize)
                elif rows != columns and not full_matrices and max(rows, columns) <= _SMALL:
                    copies.take(count * max(rows, columns) ** 2 * given.itemsize)
            with Scratch(opened) as checks:
                _take_check(checks, given)
    return results[0], singular, results[1]


def _after(
    operator: Any, take: Callable[..., None], at: int = 0, *, also_empty: bool = False
) -> Callable[..., Any]:  # fmt: skip
    """Return the kernel of an operator that takes buffers after its results; `at` is the argument of their sizes.

    `also_empty` says whether it takes them for matrices without elements, too.
    """
    compute = generic_kernel(operator, values.device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        if also_empty or args[at].numel():
            with Scratch(args[at].device) as scratch:
                take(scratch, *args, **kwargs)
        return result

    return kernel


def _of_lu(scratch: Scratch, given: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    take_lu(scratch, given)


def _of_lu_solve(
    scratch: Scratch, lu: torch.Tensor, pivots: torch.Tensor, right: torch.Tensor, *, left: bool = True,
    adjoint: bool = False,
) -> None:  # fmt: skip
    if not lu.mT.is_contiguous():
        scratch.take(nbytes_of(lu))
    shape = right.shape if left else right.mT.shape
    take_lu_solution(scratch, lu, int(shape[-1]), is_transposed=adjoint or not left)


def _of_inverse(scratch: Scratch, given: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    size = given.shape[-1]
    scratch.take(nbytes_of(given))
    scratch.take(count_of(given) * size * 4)
    take_lu(scratch, given)
    take_lu_solution(scratch, given, size, is_transposed=False)


def _of_solution(
    scratch: Scratch, given: torch.Tensor, right: torch.Tensor, *, left: bool = True, **kwargs: Any
) -> None:
    is_vector = right.dim() == 1 or (right.dim() == given.dim() - 1 and right.shape == given.shape[:-1])
    if is_vector:
        scratch.take(nbytes_of(right))
    take_lu(scratch, given)
    columns = 1 if is_vector else right.shape[-1 if left else -2]
    take_lu_solution(scratch, given, int(columns), is_transposed=not left)


def _of_unpacking(
    scratch: Scratch, lu: torch.Tensor, pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> None:
    if unpack_pivots:
        _take_permutation(scratch, lu)


def _take_permutation(scratch: Scratch, lu: torch.Tensor) -> None:
    scratch.take(lu.shape[-2] * 8)
    if lu.dim() > 2:
        scratch.take(count_of(lu) * lu.shape[-2] * 8)


def _of_whole_lu(scratch: Scratch, given: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    factors = scratch.take(nbytes_of(given))
    scratch.take(count_of(given) * min(given.shape[-2:]) * 4)
    scratch.take(count_of(given) * INFO)
    take_lu(scratch, given)
    scratch.free(factors)
    _take_permutation(scratch, given)


def _of_indefinite_solution(
    scratch: Scratch, factors: torch.Tensor, pivots: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any
) -> None:
    if not factors.mT.is_contiguous():
        scratch.take(nbytes_of(factors))
    scratch.take(pivots.numel() * 8)
    scratch.take(INFO)


def _of_cholesky(scratch: Scratch, given: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    if count_of(given) > 1:
        scratch.take(count_of(given) * 8)


def _of_cholesky_solve(scratch: Scratch, right: torch.Tensor, factor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    batch = torch.broadcast_shapes(right.shape[:-2], factor.shape[:-2])
    _take_cholesky_solution(scratch, factor, batch, right.shape[-1])


def _of_cholesky_inverse(scratch: Scratch, factor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    if factor.numel():
        scratch.take(nbytes_of(factor))
    _take_cholesky_solution(scratch, factor, factor.shape[:-2], factor.shape[-1])


def _take_cholesky_solution(scratch: Scratch, factor: torch.Tensor, batch: torch.Size, columns: int) -> None:
    """Take the buffers of the solutions with factors, each of which may be for several of the batch."""
    count, length = batch.numel(), factor.shape[-1]
    if count == 1:
        scratch.take(INFO)
        if factor.numel():
            scratch.take(nbytes_of(factor))
    else:
        for _ in range(2):
            if batch != factor.shape[:-2]:
                scratch.take(count * length * length * factor.itemsize)
            take_triangular(scratch, count, length, columns)


def _geqrf(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a factorization. The meta device has no kernel for it."""
    opened, shape = open_torch_device(given.device), (*given.shape[:-2], min(given.shape[-2:]))
    if values.is_computed():
        found = _aten.geqrf(values_of(given))
    else:
        meta = values_of(given)
        found = (meta.new_empty(meta.mT.shape).mT, meta.new_empty(shape))
    factors, scale = (adopt(each, opened) for each in found)
    if count_of(given):
        with Scratch(opened) as scratch:
            take_factorization(scratch, given)
    return factors, scale


def _of_qr(scratch: Scratch, given: torch.Tensor, mode: str = "reduced") -> None:
    scratch.take(count_of(given) * min(given.shape[-2:]) * given.itemsize)
    if mode == "r":
        scratch.take(nbytes_of(given))
    take_factorization(scratch, given)
    if mode != "r" and given.numel():
        take_product(scratch)


def _of_product(scratch: Scratch, given: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    take_product(scratch)


def _of_multiplication(scratch: Scratch, given: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    if not given.mT.is_contiguous():
        scratch.take(nbytes_of(given))
    take_product(scratch)


def _of_triangular_solve(
    scratch: Scratch, given: torch.Tensor, right: torch.Tensor, *, left: bool = True, **kwargs: Any
) -> None:  # fmt: skip
    if not given.is_contiguous() and not given.mT.is_contiguous():
        scratch.take(nbytes_of(given))
    batch = torch.broadcast_shapes(given.shape[:-2], right.shape[:-2])
    take_triangular(scratch, batch.numel(), given.shape[-1], right.shape[-1 if left else -2])


def _of_old_triangular_solve(
    scratch: Scratch, right: torch.Tensor, given: torch.Tensor, *args: Any, **kwargs: Any
) -> None:
    batch = torch.broadcast_shapes(given.shape[:-2], right.shape[:-2])
    take_triangular(scratch, batch.numel(), given.shape[-1], right.shape[-1])


def _lstsq(
    given: torch.Tensor, right: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the solution and the residuals, by a factorization of a copy of the matrix."""
    check_devices(given, right)
    if values.is_computed():
        found = _aten.linalg_lstsq(values_of(given), values_of(right), rcond, driver="gels")
    else:
        found = _shapes_of_lstsq(values_of(given), values_of(right))
    opened, count = open_torch_device(given.device), count_of(given)
    rows, columns = given.shape[-2:]
    with Scratch(opened) as scratch:
        scratch.take(count * INFO)
        is_vector = right.dim() == given.dim() - 1
        solved = found[0].unsqueeze(-1) if is_vector else found[0]
        shape = (*solved.shape[:-2], max(rows, columns), solved.shape[-1])
        room = torch.empty(shape, dtype=solved.dtype, device=solved.device).mT.contiguous().mT
        room[..., :columns, :].copy_(solved)
        with Scratch(opened) as copies:
            solution = adopt(room, opened)[..., :columns, :]
            copies.take(nbytes_of(given))
            if count > 1 and rows >= columns:
                copies.take(nbytes_of(given))
                take_pointers(copies, count, count)
            else:
                scale = copies.take(count * min(rows, columns) * given.itemsize)
                if rows < columns:
                    copies.take(nbytes_of(given))
                take_factorization(copies, given)
                if rows < columns:
                    take_triangular(copies, count, rows, room.shape[-1])
                    take_product(copies)
                else:
                    take_product(copies)
                    take_triangular(copies, count, columns, room.shape[-1])
                    copies.free(scale)
            residuals = adopt(found[1].contiguous(), opened)
        with Scratch(opened) as checks:
            _take_check(checks, given)
        solution = solution.squeeze(-1) if is_vector else solution
        return solution, residuals, *(adopt(each, opened) for each in found[2:])


def _shapes_of_lstsq(given: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the solution, residuals, rank and singular values of `lstsq` with the driver gels, of the meta device."""
    *batch, rows, columns = given.shape
    is_vector = right.dim() == given.dim() - 1
    count = 1 if is_vector else right.shape[-1]
    real = given.dtype.to_real()
    solution = given.new_empty((*batch, columns) if is_vector else (*batch, columns, count))
    residuals = given.new_empty((*batch, count) if rows > columns else (0,), dtype=real)
    return solution, residuals, given.new_empty((0,), dtype=torch.int64), given.new_empty((0,), dtype=real)


def _pinv(
    given: torch.Tensor, *, atol: torch.Tensor | None = None, rtol: torch.Tensor | None = None, hermitian: bool = False
) -> torch.Tensor:  # fmt: skip
    """Return the pseudoinverse, as the operators that it consists of on a GPU. The CPU has one kernel for it."""
    options: dict[str, Any] = {"dtype": torch.float64, "device": given.device}
    least = torch.zeros((), **options) if atol is None else atol
    if rtol is None:
        epsilon = torch.finfo(given.dtype).eps * max(given.shape[-2:])
        rtol = torch.full((), epsilon if atol is None else 0.0, **options)
        if atol is not None:  # only where the other limit is not used
            rtol = torch.where(atol > 0.0, rtol, torch.full((), epsilon, **options))
    if not given.numel():
        result: torch.Tensor = _compute_pinv(given, atol=atol, rtol=rtol, hermitian=hermitian)
        return result
    if hermitian:
        found, left = torch.linalg.eigh(given)
        sizes = found.abs()
        largest = sizes.amax(-1, True)
        right = left
    else:
        left, found, transposed = torch.linalg.svd(given, False)
        right, sizes, largest = transposed.mH, found, found.narrow(-1, 0, 1)
    scaled = rtol.unsqueeze(-1) * largest
    limit = torch.maximum(least.unsqueeze(-1), scaled)
    del scaled
    zero = torch.zeros((), dtype=found.dtype, device=found.device)  # arguments are made from the last to the first
    inverse = found.reciprocal()
    mask = sizes > limit
    factors = torch.where(mask, inverse, zero).to(given.dtype)
    del mask, inverse, zero
    product = (right if not hermitian else left) * factors.unsqueeze(-2)
    return torch.matmul(product, left.mH)


_compute_pinv = generic_kernel(_aten.linalg_pinv.atol_rtol_tensor, values.device)
_TAKEN: Sequence[tuple[str, Callable[..., None]]] = (
    ("linalg_lu_factor_ex", _of_lu), ("linalg_lu_solve", _of_lu_solve), ("lu_unpack", _of_unpacking),
    ("linalg_lu", _of_whole_lu), ("linalg_inv_ex", _of_inverse), ("_linalg_solve_ex", _of_solution),
    ("linalg_ldl_solve", _of_indefinite_solution), ("linalg_cholesky_ex", _of_cholesky),
    ("linalg_householder_product", _of_product), ("ormqr", _of_multiplication),
)  # fmt: skip
DECOMPOSITION_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_linalg_eigh": _eigh,
    "aten::_linalg_svd": _svd,
    "aten::geqrf": _geqrf,
    "aten::linalg_lstsq": _lstsq,
    "aten::linalg_pinv.atol_rtol_tensor": _pinv,
    "aten::cholesky_solve": _after(_aten.cholesky_solve.default, _of_cholesky_solve, 1, also_empty=True),
    "aten::cholesky_inverse": _after(_aten.cholesky_inverse.default, _of_cholesky_inverse, also_empty=True),
    "aten::linalg_qr": _after(_aten.linalg_qr.default, _of_qr, also_empty=True),
    "aten::linalg_solve_triangular": _after(
        _aten.linalg_solve_triangular.default, _of_triangular_solve, also_empty=True
    ),
    "aten::triangular_solve": _after(_aten.triangular_solve.default, _of_old_triangular_solve, 1, also_empty=True),
    **{f"aten::{name}": _after(getattr(_aten, name).default, take) for name, take in _TAKEN},
}
