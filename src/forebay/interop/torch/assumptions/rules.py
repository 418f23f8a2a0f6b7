"""The table of rules: assumptions about the results of operators, from those about their arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import NOTHING, Elements, assumed
from forebay.interop.torch.assumptions.masks import (
    OF_MASKS,
    all_rule,
    any_rule,
    combined_rule,
    constant_rule,
    equality_rule,
    fill_rule,
    masked_fill_rule,
    negation_rule,
    put_rule,
    scatter_rule,
    true_count,
    where_rule,
)
from forebay.interop.torch.assumptions.ranks import ranked
from forebay.interop.torch.assumptions.single_elements import Rule, length, moving_rule, pointwise_rule

__all__ = ["moves_elements", "rule_of"]


def rule_of(operator: Any) -> Rule | None:
    """Return the rule of an operator, or None if nothing is assumed about its results. It raises no error."""
    rule = _find(operator)

    def safe(given: Mapping[str, Any]) -> Elements | Sequence[Elements]:
        try:
            return rule(given)  # type: ignore[misc]  # there is one, see below
        except Exception:  # noqa: BLE001 -- arguments that the operator's kernel refuses, with PyTorch's error
            return NOTHING

    return None if rule is None else safe


def moves_elements(operator: Any) -> bool:
    """Return True if the results of an operator consist of elements of its arguments."""
    return operator._schema.name.partition("::")[2].removesuffix("_") in _MOVING


def _find(operator: Any) -> Rule | None:
    name = operator._schema.name.partition("::")[2].removesuffix("_")
    if name in OF_MASKS:
        return combined_rule(operator, *OF_MASKS[name])
    if name in _RULES:
        return _RULES[name]
    if name in _MOVING:
        return moving_rule
    if torch.Tag.pointwise in operator.tags:
        return pointwise_rule(operator)
    return None


def _index_below(count: int, origin: str) -> Elements:
    return Elements(origin, None, 0, max(0, count - 1))


def _index_of_extreme(given: Mapping[str, Any]) -> Elements:
    return _index_below(length(given), "argmax")


def _selected(default: int | None = None) -> Rule:
    """Return the rule of an operator that returns elements and their indices."""

    def rule(given: Mapping[str, Any]) -> tuple[Elements, Elements]:
        return assumed(given["self"]), _index_below(length(given, default), "index")

    return rule


def _sorted(given: Mapping[str, Any]) -> tuple[Elements, Elements]:
    return assumed(given["self"]).without_places(), _order(given)


def _order(given: Mapping[str, Any]) -> Elements:
    """Return the indices of elements in an order."""
    tensor, dim = given["self"], given.get("dim", -1)
    found = _index_below(length(given, -1), "index")
    return ranked(found, given.get("k")) if dim in (-1, tensor.dim() - 1) else found


def _extreme(*, largest: bool) -> Rule:
    def rule(given: Mapping[str, Any]) -> Elements | tuple[Elements, Elements]:
        found = assumed(given["self"])
        end = found.high if largest else found.low
        if end is None or found.value is not None:
            reduced = found
        else:  # a bound: the elements may be smaller
            reduced = found._replace(origin=found.origin or "max", value=end, share=None)
        if isinstance(given.get("dim"), int):
            return reduced, _index_below(length(given), "index")
        return reduced

    return rule


def _sum(given: Mapping[str, Any]) -> Elements:
    tensor = given["self"]
    found, count = assumed(tensor), length(given)
    if tensor.dtype == torch.bool:
        return Elements(found.origin or "sum", true_count(found, count), 0, count)
    low, high = found.low, found.high
    if low is None or high is None:
        return NOTHING if found.value is None else Elements(found.origin, found.value * count)
    value = None if found.value is None else found.value * count
    if found.share is not None:  # one-hot codes
        value = round(found.share * high * count)
    total = None
    if found.share is not None and found.classes and tensor.numel() == count * found.classes:  # counts of each class
        total = round(found.share * tensor.numel())
    return Elements(found.origin or "sum", value, min(low, low * count), max(high, high * count), None, total)


def _count(given: Mapping[str, Any]) -> Elements:
    found, count = assumed(given["self"]), length(given)
    return Elements("count_nonzero", true_count(found, count), 0, count)


def _running_sum(given: Mapping[str, Any]) -> Elements:
    found, count = assumed(given["self"]), length(given)
    if found.low is None or found.high is None:
        return NOTHING
    low, high = min(0, found.low * count), max(found.high, found.high * count)
    return Elements("cumsum", None, low, high)


def _mean(given: Mapping[str, Any]) -> Elements:
    found = assumed(given["self"])
    return NOTHING if found.value is None else Elements(found.origin and "mean", found.value)


def _softmax(given: Mapping[str, Any]) -> Elements:
    return Elements("softmax", 1 / max(1, length(given)))


def _log_softmax(given: Mapping[str, Any]) -> Elements:
    return Elements("log_softmax", -math.log(max(1, length(given))))


def _multinomial(given: Mapping[str, Any]) -> Elements:
    tensor = given["self"]
    found = _index_below(tensor.shape[-1] if tensor.dim() else 1, "multinomial")
    return found if given.get("replacement") else ranked(found, given["num_samples"])


def _buckets(given: Mapping[str, Any]) -> Elements:
    boundaries = given.get("boundaries", given.get("sorted_sequence"))
    count = boundaries.shape[-1] if isinstance(boundaries, torch.Tensor) and boundaries.dim() else 0
    return Elements("bucketize", None, 0, count)


def _nonzero(given: Mapping[str, Any]) -> Elements:
    """Return the range of places. The one place of what is assumed not to come, such as an end token, is the last.

    A program that pads its tokens with end tokens cuts them at the first one: what it keeps is all of them.
    """
    tensor = given["self"]
    found, places = assumed(tensor), max([1, *tensor.shape])
    is_at_end = found.origin and found.value == 0 and tensor.numel() == places == true_count(found, places) * places
    found = _index_below(places, "nonzero")
    if is_at_end:
        return found._replace(value=places - 1)
    return ranked(found) if tensor.dim() == 1 else found


def _unique(given: Mapping[str, Any]) -> tuple[Elements, ...]:
    tensor = given["self"]
    count = max(1, tensor.numel())
    values = ranked(assumed(tensor).without_places()) if given.get("dim") is None else assumed(tensor)
    return values, _index_below(count, "unique"), Elements("unique", 1, 1, count)


def _bincount(given: Mapping[str, Any]) -> Elements:
    count = given["self"].numel()
    found = assumed(given["self"])
    classes = 1 if found.high is None else found.high + 1
    total = count if given.get("weights") is None else None
    return Elements("bincount", math.ceil(count / max(1, classes)), 0, count, None, total)


def _remainder(given: Mapping[str, Any]) -> Elements:
    divisor = assumed(given["other"])
    if isinstance(divisor.low, int) and divisor.low > 0 and divisor.high is not None:
        return Elements("remainder", 0 if divisor.high == 1 else None, 0, divisor.high - 1)
    return NOTHING


def _range(given: Mapping[str, Any]) -> Elements:
    start, end = given.get("start", 0), given.get("end")
    if isinstance(start, int) and isinstance(end, int) and start < end:
        return Elements("", None, start, end - 1)
    return NOTHING


def _permutation(given: Mapping[str, Any]) -> Elements:
    return ranked(_index_below(given["n"], "randperm"))


def _repetitions(given: Mapping[str, Any]) -> Elements:
    return _index_below(given["repeats"].numel(), "repeat_interleave")


def _with_zeros(given: Mapping[str, Any]) -> Elements:
    """The elements, and zeros in place of some."""
    return assumed(given["self"]).joined(assumed(0).as_type(given["self"].dtype))


def _padded(given: Mapping[str, Any]) -> Elements:
    return assumed(given["self"]).joined(assumed(given.get("value", 0)).as_type(given["self"].dtype))


def _converted(given: Mapping[str, Any]) -> Elements:
    tensor = given["self"]
    return assumed(tensor).as_type(given.get("dtype") or tensor.dtype)


def _embedding(given: Mapping[str, Any]) -> Elements:
    return assumed(given["weight"])


# Operators whose results consist of elements of their arguments.
_MOVING = {
    "_index_put_impl", "_unsafe_index", "alias_copy", "as_strided_copy", "cat", "clone", "detach_copy", "expand_copy",
    "flip", "gather", "index", "index_copy", "index_put", "index_select", "masked_scatter", "masked_select",
    "permute_copy", "put", "reflection_pad1d", "repeat", "roll", "select_scatter", "slice_scatter", "stack", "take",
    "unfold_copy", "view_copy",
}  # fmt: skip
_RULES: dict[str, Rule] = {
    "_index_put_impl": put_rule,
    "_log_softmax": _log_softmax,
    "_softmax": _softmax,
    "_to_copy": _converted,
    "_unique": _unique,
    "_unique2": _unique,
    "all": all_rule,
    "amax": _extreme(largest=True),
    "amin": _extreme(largest=False),
    "any": any_rule,
    "arange": _range,
    "argmax": _index_of_extreme,
    "argmin": _index_of_extreme,
    "argsort": _order,
    "bincount": _bincount,
    "bucketize": _buckets,
    "constant_pad_nd": _padded,
    "count_nonzero": _count,
    "cummax": _selected(),
    "cummin": _selected(),
    "cumsum": _running_sum,
    "embedding": _embedding,
    "eq": equality_rule(is_equal=True),
    "index_fill": fill_rule,
    "index_put": put_rule,
    "isin": constant_rule("isin", False),
    "isinf": constant_rule("isinf", False),
    "isnan": constant_rule("isnan", False),
    "isneginf": constant_rule("isneginf", False),
    "isposinf": constant_rule("isposinf", False),
    "kthvalue": _selected(-1),
    "logical_not": negation_rule,
    "masked_fill": masked_fill_rule,
    "max": _extreme(largest=True),
    "mean": _mean,
    "median": _selected(),
    "min": _extreme(largest=False),
    "mode": _selected(-1),
    "multinomial": _multinomial,
    "nanmedian": _selected(),
    "ne": equality_rule(is_equal=False),
    "nonzero": _nonzero,
    "randperm": _permutation,
    "remainder": _remainder,
    "repeat_interleave": _repetitions,
    "scatter": scatter_rule,
    "searchsorted": _buckets,
    "sort": _sorted,
    "sum": _sum,
    "topk": _sorted,
    "tril": _with_zeros,
    "triu": _with_zeros,
    "unique_consecutive": _unique,
    "unique_dim": _unique,
    "where": where_rule,
}
