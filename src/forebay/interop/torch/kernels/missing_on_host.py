"""Operators that CUDA's kernels compute and the CPU's refuse, beside types: by other operators over the values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["with_substitute"]

_Call = Callable[[Sequence[Any], dict[str, Any]], Any]


def with_substitute(operator: Any, call: _Call) -> _Call:
    """Return `call` with other computations for arguments that the CPU's kernel refuses, and CUDA's does not."""
    compute = _SUBSTITUTES.get(operator._schema.name.partition("::")[2])
    if compute is None or operator._overloadname not in ("default", "out"):
        return call

    def run(args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        if args[0].device.type == "cpu":
            given = dict(keywords)
            out = [given.pop(argument.name, None) for argument in operator._schema.arguments if argument.is_out]
            found = compute(*args, **given)
            if found is not None:
                return found if not out else _written(found, out)
        return call(args, keywords)

    return run


def _written(found: Any, out: Sequence[torch.Tensor]) -> Any:
    results = found if isinstance(found, tuple) else (found,)
    for target, each in zip(out, results, strict=True):
        target.resize_(each.shape).copy_(each)
    return out[0] if len(out) == 1 else tuple(out)


def _nansum(
    given: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor | None:  # fmt: skip
    """Return the sum of complex numbers without those with a NaN."""
    if not given.is_complex():
        return None
    kept = torch.where(given.isnan(), 0, given)
    return kept.sum(dim, keepdim, dtype=dtype) if dim else kept.sum(dtype=dtype)


def _packed(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both factors without pivoting in one matrix, and the place of the first pivot that is zero, from 1."""
    packed = given.clone(memory_format=torch.contiguous_format)
    rows, columns = given.shape[-2:]
    info = torch.zeros(given.shape[:-2], dtype=torch.int32)
    for at in range(min(rows, columns)):
        pivot = packed[..., at, at]
        info = torch.where((info == 0) & (pivot == 0), at + 1, info)
        packed[..., at + 1 :, at] /= pivot[..., None]
        packed[..., at + 1 :, at + 1 :] -= packed[..., at + 1 :, at, None] * packed[..., at, None, at + 1 :]
    return packed, info.to(torch.int32)


def _lu_factor(given: torch.Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    if pivot or given.dtype not in _PIVOTED:
        return None
    packed, info = _packed(given)
    if check_errors and bool(info.any()):
        raise torch.linalg.LinAlgError(
            f"linalg.lu_factor: U[{int(info.max())},{int(info.max())}] is zero and using it on lu_solve would result "
            "in a division by zero. If you still want to perform the factorization, consider calling "
            "linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)"
        )
    order = torch.arange(1, min(given.shape[-2:]) + 1, dtype=torch.int32)
    layout = packed.mT.contiguous().mT  # in columns, as those of the libraries
    return layout, order.expand(*given.shape[:-2], -1).contiguous(), info


def _lu(given: torch.Tensor, *, pivot: bool = True) -> Any:
    if pivot or given.dtype not in _PIVOTED:
        return None
    packed, _ = _packed(given)
    least = min(given.shape[-2:])
    lower = packed[..., :least].tril(-1) + torch.eye(given.shape[-2], least, dtype=given.dtype)
    return given.new_empty(0), lower, packed[..., :least, :].triu()


_PIVOTED = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "linalg_lu": _lu, "linalg_lu_factor_ex": _lu_factor, "nansum": _nansum,
}  # fmt: skip
