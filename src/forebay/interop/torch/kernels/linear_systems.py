"""Buffers of factorizations and of solutions of linear systems, by the rules of PyTorch's CUDA build.

Which of cuBLAS and cuSOLVER computes depends on the sizes. The limits agree with PyTorch 2.15 over
the oracle at the sizes that were tried (5, 40, 64, 128, 200, 256, 300, 384, 448, 500, 512, 600, 1000; batches of 1, 2,
3, 4, 6, 9, 20 and 40). Between them they are assumed.
"""

from __future__ import annotations

import math

import torch

from forebay.interop.torch.kernels.scratch_memory import Scratch
from forebay.interop.torch.kernels.workspaces import blas_workspace

__all__ = [
    "INFO",
    "count_of",
    "take_factorization",
    "take_lu",
    "take_lu_solution",
    "take_pointers",
    "take_product",
    "take_triangular",
]

_POINTER = _INDEX = 8
INFO = 4  # bytes of the error of a matrix
_PAIR_LU, _PANEL_LU, _LARGE_LU = 192, 256, 512  # rows from which a pair, and others, are factorized in other ways
_MANY_LU = 4  # matrices that are factorized together in panels
_FEW, _LOOPED_TRIANGLE = 8, 64  # triangles of so many rows are solved one by one if they are few
_SMALL, _SMALL_SQUARE, _LARGE, _PAIR = 8, 16, 128, 2
_BATCHED_QR = 256


def count_of(matrices: torch.Tensor) -> int:
    """Return how many matrices a batch has."""
    return math.prod(matrices.shape[:-2])


def take_pointers(scratch: Scratch, *counts: int) -> None:
    """Take and free arrays of so many pointers to the matrices of a batch, and cuBLAS's workspace."""
    with Scratch(scratch.opened) as pointers:
        for each in counts:
            pointers.take(each * _POINTER)
        blas_workspace(pointers)


def take_lu(scratch: Scratch, matrices: torch.Tensor) -> None:
    """Take and free the buffers of a factorization with pivots: of all at once, in panels, or of one after another."""
    count, (rows, columns) = count_of(matrices), matrices.shape[-2:]
    if count == 1 or rows != columns or not rows:
        return
    if rows < (_PAIR_LU if count == 2 else _PANEL_LU):
        take_pointers(scratch, count)
    elif count >= _MANY_LU:
        with Scratch(scratch.opened) as panels:
            panels.take(count * 2 * _POINTER)
            panels.take(count * rows * INFO)
            is_large = rows >= _LARGE_LU
            products = 2 * -(-rows // (64 if is_large else 40)) - (1 if is_large else 2)
            for _ in range(products):
                take_pointers(panels)


def take_triangular(scratch: Scratch, count: int, length: int, columns: int) -> None:
    """Take and free the buffers of a solution with so many triangles. Matrices without elements have no pointers."""
    if count <= _FEW and length >= _LOOPED_TRIANGLE:
        take_pointers(scratch)
    else:
        of_triangles = count if length else 0
        take_pointers(scratch, of_triangles, of_triangles if columns else 0)


def take_lu_solution(scratch: Scratch, factors: torch.Tensor, columns: int, *, is_transposed: bool) -> None:
    """Take and free the buffers of a solution for so many columns, from factors with pivots."""
    count, size = count_of(factors), factors.shape[-1]
    if size <= _SMALL or (size == columns and size <= _SMALL_SQUARE):
        take_pointers(scratch, count, count)
    elif size == columns or size > _LARGE:
        _take_permuted(scratch, factors, columns, is_transposed=is_transposed)
    elif count <= _PAIR:
        scratch.free(scratch.take(INFO))
    else:
        take_pointers(scratch, count, count)


def _take_permuted(scratch: Scratch, factors: torch.Tensor, columns: int, *, is_transposed: bool) -> None:
    """Take and free the rows in another order, and the buffers of two solutions with triangles."""
    count, size = count_of(factors), factors.shape[-1]
    with Scratch(scratch.opened) as permutation:
        first = permutation.take(size * _INDEX)
        if factors.dim() > 2:
            permutation.take(count * size * _INDEX)
            permutation.free(first)
        if not is_transposed:
            permutation.take(size * _INDEX)
            permutation.take(count * size * _INDEX)
            permutation.take(count * size * columns * factors.itemsize)
        for _ in range(2):
            take_triangular(permutation, count, size, columns)
        if is_transposed:
            permutation.take(count * size * columns * factors.itemsize)


def take_factorization(scratch: Scratch, matrices: torch.Tensor) -> None:
    """Take and free the buffers of a factorization into an orthogonal matrix and a triangle."""
    count, rows = count_of(matrices), matrices.shape[-2]
    if rows <= _BATCHED_QR and count >= max(2, rows // 16):
        pointers = count if matrices.numel() else 0
        take_pointers(scratch, pointers, pointers)
    else:
        take_product(scratch)


def take_product(scratch: Scratch) -> None:
    """Take and free the error of a product with an orthogonal matrix."""
    scratch.free(scratch.take(INFO))
