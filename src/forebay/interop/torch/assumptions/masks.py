"""Rules of assumptions about masks: comparisons, and elements chosen by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import NOTHING, Elements, assumed
from forebay.interop.torch.assumptions.routing import is_worst_routing, routes
from forebay.interop.torch.assumptions.single_elements import Rule, length, pointwise_rule
from forebay.interop.torch.processes import assumed_values

__all__ = [
    "OF_MASKS",
    "all_rule",
    "any_rule",
    "combined_rule",
    "constant_rule",
    "equality_rule",
    "fill_rule",
    "masked_fill_rule",
    "negation_rule",
    "put_rule",
    "scatter_rule",
    "share_of",
    "true_count",
    "true_share",
    "where_rule",
]


_ROUNDING = 1e-6  # of shares such as a third, whose products are not exact


def true_share(found: Elements) -> float:
    """Return the share of a mask that is assumed to be true."""
    if found.share is not None:
        return found.share
    if found.value is not None:
        return float(bool(found.value))
    return assumed_values.choices().mask  # nothing is known


def true_count(found: Elements, count: int) -> int:
    """Return how many of `count` elements of a mask are assumed to be true: the same wherever they are counted."""
    return share_of(true_share(found), count)


def share_of(share: float, count: int) -> int:
    """Return the number of elements of a share, which is rounded up."""
    return math.ceil(share * count - _ROUNDING)


def equality_rule(*, is_equal: bool) -> Rule:
    def rule(given: Mapping[str, Any]) -> Elements:
        one, other = assumed(given["self"]), assumed(given["other"])
        if None not in (one.value, other.value):
            origin = (one.origin or other.origin) and "eq"
            return _constant(origin, (one.value == other.value) is is_equal)
        if given["self"] is given["other"]:  # x != x asks for numbers that are not finite
            return _constant("eq", is_equal)
        equal = _equal_share(given["self"], one, other)
        classes = one.classes if one.share is not None else None
        if not is_equal and 0 < equal < 1 and one.share is None:  # not a part: labels that are not ignored may be all
            return Elements("ne", True, 0, 1, assumed_values.choices().mask)
        share = equal if is_equal else 1 - equal
        value = bool(share) if equal == 1 else not is_equal
        return Elements("eq" if is_equal else "ne", value, 0, 1, share, None, classes)

    return rule


def _equal_share(tensor: torch.Tensor, one: Elements, other: Elements) -> float:
    """Return the share of elements that are equal: of an integer with n possible values, one in n."""
    if one.share is not None and (one.low, one.high) == (0, 1) and other.value in (0, 1):  # one-hot codes
        return one.share if other.value else 1 - one.share
    if None not in (one.low, one.high, other.low, other.high) and (one.high < other.low or other.high < one.low):  # type: ignore[operator]  # checked before
        return 0.0
    sizes = [each.high - each.low + 1 for each in (one, other) if each.low is not None and each.high is not None]
    if not sizes or max(sizes) <= 1:
        return 0.0
    if is_worst_routing() and other.value is not None and one.low is not None and routes(tensor, max(sizes)):
        return float(other.value == one.low)
    return 1 / max(sizes)


def _constant(origin: str, value: bool) -> Elements:
    return Elements(origin, value, 0, 1, float(value))


def constant_rule(origin: str, value: bool) -> Rule:
    return lambda _: _constant(origin, value)


def negation_rule(given: Mapping[str, Any]) -> Elements:
    """Return what is assumed about the opposite of a mask."""
    found = assumed(given["self"])
    if found.low is None and found.value is None:
        return NOTHING
    value = None if found.value is None else not found.value
    return Elements(found.origin and "not", value, 0, 1, None if found.share is None else 1 - found.share)


def any_rule(given: Mapping[str, Any]) -> Elements:
    """Return what is assumed about `any`: True if at least one element is expected to be, as an expert gets tokens."""
    found = assumed(given["self"])
    if found.origin == "eq" and found.share is not None and found.share * length(given) >= 1:
        return _constant("any", True)
    if found.value is not None and (not found.origin or not found.share or found.share in (0.0, 1.0)):
        return _constant(found.origin and "any", bool(found.value))
    return _constant("any", False)


def all_rule(given: Mapping[str, Any]) -> Elements:
    """Return what is assumed about `all`: False if elements read as False, as not all texts have ended."""
    found = assumed(given["self"])
    if found.value is not None:
        return _constant(found.origin and "all", bool(found.value))
    return _constant("all", True)


def combined_rule(
    operator: Any,
    of_values: Callable[[bool | None, bool | None], bool | None],
    share: Callable[[float, float], float],
) -> Rule:
    """Return the rule of two masks, for which one value may decide."""
    of_elements: Callable[[Mapping[str, Any]], Elements] = pointwise_rule(operator)

    def rule(given: Mapping[str, Any]) -> Elements:
        one, other = assumed(given["self"]), assumed(given["other"])
        is_mask = all(
            not isinstance(each, torch.Tensor) or each.dtype == torch.bool for each in (given["self"], given["other"])
        )
        if not is_mask:
            found = of_elements(given)
            return _of_integers(given) if found.value is None and of_values is _and else found
        value = of_values(*(None if each.value is None else bool(each.value) for each in (one, other)))
        origin = "" if not one.origin and not other.origin else "mask"
        return Elements(origin, value, 0, 1, share(true_share(one), true_share(other)))

    return rule


def _of_integers(given: Mapping[str, Any]) -> Elements:
    one, other = assumed(given["self"]), assumed(given["other"])
    bounded = [each.high for each in (one, other) if each.low is not None and each.low >= 0 and each.high is not None]
    return Elements("bitwise", None, 0, min(bounded)) if bounded else NOTHING


def where_rule(given: Mapping[str, Any]) -> Elements:
    condition, one, other = (assumed(given.get(key)) for key in ("condition", "self", "other"))
    if condition.value is not None and condition.share in (None, 0.0, 1.0):
        return _chosen(one if condition.value else other, condition)
    return one.joined(other)


def masked_fill_rule(given: Mapping[str, Any]) -> Elements:
    mask, one, other = (assumed(given[key]) for key in ("mask", "self", "value"))
    other = other.as_type(given["self"].dtype)
    if mask.value is not None and mask.share in (None, 0.0, 1.0):
        return _chosen(other if mask.value else one, mask)
    return one.joined(other)


def _chosen(found: Elements, condition: Elements) -> Elements:
    """Return what holds for elements that a condition has chosen: they are assumed if the condition is."""
    return found._replace(origin=found.origin or condition.origin)


def scatter_rule(given: Mapping[str, Any]) -> Elements:
    """One-hot codes: elements at chosen indices of zeros."""
    if given.get("reduce"):
        return NOTHING
    one = assumed(given["self"])
    other = assumed(given.get("value", given.get("src"))).as_type(given["self"].dtype)
    found = one.joined(other)
    if one.value == 0 and other.value is not None:
        index, shape = given["index"], given["self"].shape
        chosen = index.shape[given["dim"]] if index.dim() else 1
        length = shape[given["dim"]] if shape else 1
        is_last = given["dim"] in (-1, len(shape) - 1)
        classes = length if is_last and given["self"].is_contiguous() else None
        return found._replace(origin="scatter", share=min(1.0, chosen / max(1, length)), classes=classes)
    return found


def put_rule(given: Mapping[str, Any]) -> Elements:
    """Elements at chosen places of constants: a mask that was false, and is true at n places, has n true elements."""
    if given.get("accumulate"):
        return NOTHING
    tensor = given["self"]
    return _with_places(tensor, given["values"], _places(tensor.shape, given["indices"]))


def fill_rule(given: Mapping[str, Any]) -> Elements:
    """Elements at chosen indices of a dimension: PyTorch from 2.14 on makes this of `mask[indices] = 1`, too."""
    tensor, index = given["self"], given["index"]
    length = tensor.shape[given["dim"]] if tensor.dim() else 1
    return _with_places(tensor, given["value"], index.numel() * tensor.numel() // max(1, length))


def _with_places(tensor: torch.Tensor, value: Any, places: int) -> Elements:
    """Return what holds for a tensor in which a number of elements became a value."""
    one, other = assumed(tensor), assumed(value).as_type(tensor.dtype)
    found = one.joined(other).without_places()
    if None in (one.value, other.value) or one.value == other.value or 0 not in (one.value, other.value):
        return found
    share = min(1.0, places / max(1, tensor.numel()))
    return found._replace(origin="index_put", share=share if other.value else 1 - share)


def _places(shape: torch.Size, indices: Sequence[torch.Tensor | None]) -> int:
    """Return the number of elements that indices choose."""
    chosen, others, dim = [], 1, 0
    for each in indices:
        if each is None:
            others, dim = others * shape[dim], dim + 1
        elif each.dtype in (torch.bool, torch.uint8):
            chosen.append(torch.Size([true_count(assumed(each), each.numel())]))
            dim += each.dim()
        else:
            chosen.append(each.shape)
            dim += 1
    return int(math.prod(torch.broadcast_shapes(*chosen)) * others * math.prod(shape[dim:]))


def _and(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else True if one and other else None


def _or(one: bool | None, other: bool | None) -> bool | None:
    return True if True in (one, other) else False if one is other is False else None


def _xor(one: bool | None, other: bool | None) -> bool | None:
    return None if one is None or other is None else one != other


OF_MASKS: dict[str, tuple[Callable[..., bool | None], Callable[[float, float], float]]] = {
    "bitwise_and": (_and, lambda one, other: one * other),
    "bitwise_or": (_or, lambda one, other: min(1.0, one + other)),
    "bitwise_xor": (_xor, max),
    "logical_and": (_and, lambda one, other: one * other),
    "logical_or": (_or, lambda one, other: min(1.0, one + other)),
    "logical_xor": (_xor, max),
}
