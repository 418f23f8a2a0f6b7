"""Decompositions and solvers, whose workspaces cuSOLVER, cuBLAS or MAGMA ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]

_Solver = Callable[[Any, Any, Any], object]  # torch, a positive definite matrix, and a right-hand side
_OPERATORS: dict[str, _Solver] = {
    "cholesky": lambda torch, matrix, side: torch.linalg.cholesky(matrix),
    "solve": lambda torch, matrix, side: torch.linalg.solve(matrix, side),
    "svd": lambda torch, matrix, side: torch.linalg.svd(matrix),
    "qr": lambda torch, matrix, side: torch.linalg.qr(matrix),
    "eigh": lambda torch, matrix, side: torch.linalg.eigh(matrix),
    "inv": lambda torch, matrix, side: torch.linalg.inv(matrix),
    "lu_factor": lambda torch, matrix, side: torch.linalg.lu_factor(matrix),
    "det": lambda torch, matrix, side: torch.linalg.det(matrix),
    "solve_triangular": lambda torch, matrix, side: torch.linalg.solve_triangular(matrix, side, upper=False),
    "cholesky_solve": lambda torch, matrix, side: torch.cholesky_solve(side, matrix),
    "cholesky_inverse": lambda torch, matrix, side: torch.cholesky_inverse(matrix),
    "svd reduced": lambda torch, matrix, side: torch.linalg.svd(matrix, full_matrices=False),
    "svdvals": lambda torch, matrix, side: torch.linalg.svdvals(matrix),
    "qr complete": lambda torch, matrix, side: torch.linalg.qr(matrix, mode="complete"),
    "qr r": lambda torch, matrix, side: torch.linalg.qr(matrix, mode="r"),
    "eigvalsh": lambda torch, matrix, side: torch.linalg.eigvalsh(matrix),
    "lu": lambda torch, matrix, side: torch.linalg.lu(matrix),
    "slogdet": lambda torch, matrix, side: torch.linalg.slogdet(matrix),
    "lstsq": lambda torch, matrix, side: torch.linalg.lstsq(matrix, side),
    "pinv": lambda torch, matrix, side: torch.linalg.pinv(matrix),
    "matrix_exp": lambda torch, matrix, side: torch.linalg.matrix_exp(matrix),
    "matrix_power": lambda torch, matrix, side: torch.linalg.matrix_power(matrix, 5),
    "matrix_rank": lambda torch, matrix, side: torch.linalg.matrix_rank(matrix),
    "ldl_factor": lambda torch, matrix, side: torch.linalg.ldl_factor(matrix),
    "eigvals": lambda torch, matrix, side: torch.linalg.eigvals(matrix),
    "eig": lambda torch, matrix, side: torch.linalg.eig(matrix),
    "cond": lambda torch, matrix, side: torch.linalg.cond(matrix),
    "matrix_norm": lambda torch, matrix, side: torch.linalg.matrix_norm(matrix, 2),
    "lu_solve": lambda torch, matrix, side: torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix), side),
    "householder_product": lambda torch, matrix, side: torch.linalg.householder_product(*torch.geqrf(matrix)),
    "svd by gesvd": lambda torch, matrix, side: torch.linalg.svd(matrix, driver="gesvd"),
    "svd by gesvdj": lambda torch, matrix, side: torch.linalg.svd(matrix, driver="gesvdj"),
    "svd by gesvda": lambda torch, matrix, side: torch.linalg.svd(matrix, full_matrices=False, driver="gesvda"),
}
_MANY = [each for each in _OPERATORS if "eig" not in each or each == "eigh"]


def _solve(
    kit: Kit, operator: str, order: int, matrices: Sequence[int] = (), dtype: str = "float32", rows: int = 0
) -> Run:
    torch = kit.torch
    matrix = kit.tensor([*matrices, rows or order, order], dtype)
    if not rows:  # well-conditioned, and positive definite
        matrix = matrix @ matrix.mT + 10 * order * torch.eye(order, dtype=matrix.dtype, device=kit.device)
    side = kit.tensor([*matrices, rows or order, 8], dtype)
    function = _OPERATORS[operator]
    return lambda: function(torch, matrix, side)


_FIRST = ("cholesky", "solve", "svd", "qr", "eigh", "inv", "lu_factor", "det")
_FAMILY = "linear algebra"

FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "linear algebra", _solve, crossed(order=[64], operator=[*_OPERATORS])),
                calls_of(_FAMILY, "linear algebra", _solve, [
                    *crossed(order=[512], operator=_FIRST),
                    *crossed(order=[32], matrices=[[64]], operator=_MANY),
                    *crossed(order=[1500], operator=["cholesky", "solve", "inv", "lu_factor", "qr"]),
                    *crossed(order=[64], rows=[200], operator=["qr", "svd", "svd reduced", "lstsq", "pinv"]),
                    *crossed(order=[64], dtype=["float64", "complex64"], operator=_FIRST),
                    *crossed(order=[16], matrices=[[8, 16]], dtype=["float64"], operator=_FIRST),
                    *crossed(order=[256], matrices=[[4]], operator=_FIRST),
                    *crossed(order=[1], operator=["inv", "solve", "cholesky"]),
                ]),
            ]
        )
    ]
}  # fmt: skip
