"""Results whose size depends on values: as large as what is assumed about the arguments says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from forebay._base.verdicts import DECIDES_SIZE
from forebay.interop.torch.assumptions.elements import assumed, is_integral
from forebay.interop.torch.assumptions.masks import share_of, true_count
from forebay.interop.torch.assumptions.routing import expert_share, is_worst_routing
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import memory_of
from forebay.interop.torch.processes import assumed_values

__all__ = ["assumed_count", "distinct_indices", "expected_count", "product_elements", "sized_result"]

_Result: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]


def sized_result(name: str, given: Mapping[str, Any]) -> _Result | None:
    """Return tensors of the meta device for the results of an operator, or None if none are assumed.

    Parameters
    ----------
    name : str
        The operator, without its overload.
    given : Mapping of str to Any
        Its arguments by name, with the tensors of the device.
    """
    function = _SIZES.get(name)
    tensors = [each for each in given.values() if isinstance(each, torch.Tensor)]
    if function is None or all(not each.is_cuda or memory_of(each).known is not None for each in tensors):
        return None  # known values have a known size: see `with_known_values`
    return function(given)


def assumed_count(mask: torch.Tensor, what: str) -> int:
    """Return how many elements of a mask are assumed to be true, and note the line. Raises DataDependent if strict."""
    found = assumed(mask)
    if found.is_exact:
        return true_count(found, int(mask.numel()))
    count = _count(mask, is_opposite=False)
    is_opposite = _is_opposite(what, f"{count:,} of {mask.numel():,} elements are true")
    return _count(mask, is_opposite=True) if is_opposite else count


def expected_count(mask: torch.Tensor) -> int:
    """Return what `assumed_count` will return at this line, and note nothing."""
    return _count(mask, is_opposite=assumed_values.choices().is_opposite_at(values.calling_line()[0]))


def _count(mask: torch.Tensor, *, is_opposite: bool) -> int:
    found = assumed(mask)
    count = true_count(found, int(mask.numel()))
    if found.is_exact:
        return count
    is_worst = is_worst_routing() is not is_opposite  # Note [Routing]
    if (share := expert_share(mask, found, is_worst=is_worst)) is not None:
        return share_of(share, int(mask.numel()))
    if not is_opposite or found.classes is not None:
        return count
    is_all = found.share in (None, 1.0) and (found.value is None or bool(found.value))
    return 0 if is_all else int(mask.numel())


def distinct_indices(count: int) -> int:
    """Return how many indices of a sparse tensor are assumed to differ, and note the line.

    Raises DataDependent if strict.
    """
    if count < 2:
        return count
    return 1 if _is_opposite("coalesce", f"{count:,} of {count:,} indices differ") else count


def product_elements(left: int, right: int, rows: int, columns: int) -> int:
    """Return how many elements a product of sparse matrices is assumed to have, an upper bound, and note the line.

    Parameters
    ----------
    left, right : int
        The elements of the factors.
    rows, columns : int
        The shape of the product.

    Raises
    ------
    DataDependent
        If no values are assumed.
    """
    most = min(rows * columns, left * min(right, columns))
    if not most:
        return 0
    return min(most, max(left, right)) if _is_opposite("product", f"{most:,} elements, at most") else most


def _is_opposite(what: str, text: str) -> bool:
    """Note the line. Returns True if it gets the opposite of what is assumed: Note [Opposite choices]."""
    if values.is_strict():
        raise values.needs_values(f"{what}()")
    line = values.calling_line()[0]
    assumed_values.note(line, f"{text} ({what}){DECIDES_SIZE}")
    return assumed_values.choices().is_opposite_at(line)


def _empty(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _nonzero(given: Mapping[str, Any]) -> torch.Tensor:
    tensor = given["self"]
    count = assumed_count(tensor, "nonzero")
    return torch.empty((tensor.dim(), count), dtype=torch.int64, device="meta").t()  # as CUDA's kernel writes it


def _masked_select(given: Mapping[str, Any]) -> torch.Tensor:
    tensor, mask = given["self"], given["mask"]
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    selected = assumed_count(mask.expand(shape), "masked_select")
    return _empty((selected,), tensor.dtype)


def _most_values(tensor: torch.Tensor, what: str) -> int:
    found, count = assumed(tensor), int(tensor.numel())
    if tensor.dtype == torch.bool:
        count = min(count, 2)
    elif is_integral(tensor.dtype) and found.low is not None and found.high is not None:
        count = min(count, found.high - found.low + 1)
    count = share_of(assumed_values.choices().mask, count)
    is_opposite = _is_opposite(what, f"{count:,} values of {tensor.numel():,} elements")
    return min(1, count) if is_opposite else count


def _unique(given: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    tensor = given["self"]
    count = _most_values(tensor, "unique")
    inverse = tensor.shape if given.get("return_inverse", True) else (0,)
    counts = (count,) if given.get("return_counts") else (0,)
    return _empty((count,), tensor.dtype), _empty(inverse, torch.int64), _empty(counts, torch.int64)


def _unique_consecutive(given: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    if given.get("dim") is not None:
        return _unique_dim(given)
    return _unique(given)


def _unique_dim(given: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    tensor = given["self"]
    rows = int(tensor.size(given["dim"]))
    count = share_of(assumed_values.choices().mask, rows)
    if _is_opposite("unique", f"{count:,} of {rows:,} rows differ"):
        count = min(1, count)
    inverse = (rows,) if given.get("return_inverse", True) else (0,)
    counts = (count,) if given.get("return_counts") else (0,)
    shape = [*tensor.shape]
    shape[given["dim"]] = count
    return _empty(shape, tensor.dtype), _empty(inverse, torch.int64), _empty(counts, torch.int64)


def _repeat_interleave(given: Mapping[str, Any]) -> torch.Tensor | None:
    repeats = given["repeats"]
    found = assumed(repeats)
    each = found.value if found.value is not None else found.high
    if each is None:
        each = 1
    total = int(each * repeats.numel())
    if found.total is not None:
        total = found.total  # counts of parts, which repeat each its number
    if _is_opposite("repeat_interleave", f"{total:,} repetitions"):
        is_range = None not in (found.low, found.high) and found.low != found.high
        total = int(found.low or 0) * repeats.numel() if is_range else 2 * total
    return _empty((total,), repeats.dtype)


def _bincount(given: Mapping[str, Any]) -> torch.Tensor | None:
    tensor, least = given["self"], given.get("minlength") or 0
    if tensor.dim() != 1 or tensor.is_floating_point():
        return None
    found = assumed(tensor)
    count = max(least, found.high + 1 if found.high is not None else 1)
    if _is_opposite("bincount", f"{count:,} classes"):
        count = max(least, 1 if found.low is None else found.low + 1)
    weights = given.get("weights")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return _empty((count,), dtype)


def _ctc_loss(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a loss for each sequence, and the sums over all alignments, which CUDA computes for the longest target."""
    scores, targets, lengths = given["log_probs"], given["targets"], given["target_lengths"]
    steps, count = scores.shape[:2]
    longest = int(targets.shape[-1]) if targets.dim() > 1 else int(targets.numel())
    if isinstance(lengths, torch.Tensor):
        if _is_opposite("ctc_loss", f"targets have at most {longest:,} elements"):
            longest = min(1, longest)
    else:
        longest = max(lengths, default=0)
    return _empty((count,), scores.dtype), _empty((count, steps, 2 * longest + 1), scores.dtype)


def _ctc_loss_backward(given: Mapping[str, Any]) -> torch.Tensor:
    return torch.empty_like(given["log_probs"], device="meta", memory_format=torch.contiguous_format)


_SIZES: dict[str, Callable[[Mapping[str, Any]], _Result | None]] = {
    "_ctc_loss": _ctc_loss,
    "_ctc_loss_backward": _ctc_loss_backward,
    "_unique2": _unique,
    "bincount": _bincount,
    "masked_select": _masked_select,
    "nonzero": _nonzero,
    "repeat_interleave": _repeat_interleave,
    "unique_consecutive": _unique_consecutive,
    "unique_dim": _unique_dim,
}
