"""Sparse tensors, whose products cuSPARSE computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]

_Sparse = Callable[[Any, Any, Any], object]  # torch, a square sparse matrix, and a dense one
_OPERATORS: dict[str, _Sparse] = {
    "mm": lambda torch, sparse, dense: torch.sparse.mm(sparse, dense),
    "mv": lambda torch, sparse, dense: torch.mv(sparse, dense[:, 0].contiguous()),
    "addmm": lambda torch, sparse, dense: torch.sparse.addmm(dense, sparse, dense),
    "mm of two": lambda torch, sparse, dense: torch.mm(sparse, sparse),
    "to_dense": lambda torch, sparse, dense: sparse.to_dense(),
    "add": lambda torch, sparse, dense: sparse + sparse,
    "mul": lambda torch, sparse, dense: sparse * 2.0,
    "sum": lambda torch, sparse, dense: torch.sum(sparse),
    "to_sparse": lambda torch, sparse, dense: (dense * (dense > 1)).to_sparse(),
    "to_sparse_csr": lambda torch, sparse, dense: (dense * (dense > 1)).to_sparse_csr(),
    "transpose, then mm": lambda torch, sparse, dense: torch.mm(sparse.t(), dense),
}
_COORDINATES: dict[str, _Sparse] = {
    "coalesce": lambda torch, sparse, dense: torch.sparse_coo_tensor(
        sparse._indices(), sparse._values(), sparse.shape
    ).coalesce(),
    "to csr": lambda torch, sparse, dense: sparse.to_sparse_csr(),
    "softmax": lambda torch, sparse, dense: torch.sparse.softmax(sparse, 1),
    "sum of dim": lambda torch, sparse, dense: torch.sparse.sum(sparse, 0),
    "index_select": lambda torch, sparse, dense: sparse.index_select(0, torch.arange(10, device=sparse.device)),
    "sparse_mask": lambda torch, sparse, dense: (
        torch.sparse_coo_tensor(sparse._indices(), sparse._values(), sparse.shape).to_dense().sparse_mask(sparse)
    ),
}
_COMPRESSED: dict[str, _Sparse] = {
    "sampled_addmm": lambda torch, sparse, dense: torch.sparse.sampled_addmm(sparse, dense, dense.t()),
    "to coo": lambda torch, sparse, dense: sparse.to_sparse_coo(),
    "to csc": lambda torch, sparse, dense: sparse.to_sparse_csc(),
    "triangular_solve": lambda torch, sparse, dense: torch.triangular_solve(dense, sparse),
}


def _operate(
    kit: Kit, operator: str, layout: str, rows: int, nonzeros: int, columns: int = 64, dtype: str = "float32"
) -> Run:
    torch = kit.torch
    places = torch.randint(0, rows, (2, nonzeros), device=kit.device)
    sparse = torch.sparse_coo_tensor(places, kit.tensor([nonzeros], dtype), (rows, rows)).coalesce()
    if layout == "csr":
        sparse = sparse.to_sparse_csr()
    kit.made.append(sparse)
    dense = kit.tensor([rows, columns], dtype)
    function = {**_OPERATORS, **_COORDINATES, **_COMPRESSED}[operator]
    return lambda: function(torch, sparse, dense)


def _structured(kit: Kit, rows: int, inner: int, columns: int) -> Run:
    """A product with two zeros among four elements, which cuSPARSELt or CUTLASS computes."""
    torch = kit.torch
    pattern = torch.tensor([0, 0, 1, 1], dtype=torch.float16, device=kit.device).tile((rows, inner // 4))
    sparse = torch.sparse.to_sparse_semi_structured(pattern)
    dense = kit.tensor([inner, columns], "float16")
    return lambda: torch.mm(sparse, dense)


_SIZES = {"rows": [4000], "nonzeros": [50_000]}
_FAMILY = "sparse tensors"

FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "sparse", _operate, crossed(
                    layout=["coo", "csr"], **_SIZES, operator=[*_OPERATORS])),
                calls_of(_FAMILY, "sparse", _operate, crossed(layout=["coo"], **_SIZES, operator=[*_COORDINATES])),
                calls_of(_FAMILY, "sparse", _operate, crossed(layout=["csr"], **_SIZES, operator=[*_COMPRESSED])),
                calls_of(_FAMILY, "sparse", _operate, crossed(
                    layout=["coo", "csr"], rows=[4000], nonzeros=[50_000], dtype=["float16", "float64"],
                    operator=["mm", "mv", "mm of two"])),
                calls_of(_FAMILY, "structured", _structured, [{"rows": 512, "inner": 512, "columns": 128}]),
            ]
        )
    ]
}  # fmt: skip
