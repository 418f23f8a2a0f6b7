"""Rules of assumptions about operators of single elements, and about those that move elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import NOTHING, Elements, assumed
from forebay.interop.torch.devices.arguments import tensors_of

__all__ = ["Rule", "length", "moving_rule", "pointwise_rule"]

Rule = Callable[[Mapping[str, Any]], Elements | Sequence[Elements]]  # from the arguments by name
_MOST_CORNERS = 3  # tensors of an operator whose smallest and largest elements are combined
_COMPARISONS = {"lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal"}
# Operators of integers that have their smallest and largest result at ends of the ranges of their arguments.
_DIVISIONS = {"div", "floor_divide"}
_EXTREME_AT_ENDS = _COMPARISONS | _DIVISIONS | {
    "add", "bitwise_not", "clamp", "clamp_max", "clamp_min", "logical_not", "maximum", "minimum", "mul",
    "neg", "relu", "rsub", "sign", "sub",
}  # fmt: skip
_INDICES = {"index", "indices", "mask"}
_FAR = 1e4  # from here on, a number stands for infinity, as that of scores which are ruled out


def length(given: Mapping[str, Any], default: int | None = None) -> int:
    """Return how many elements of its tensor each element of the result of an operator is made from."""
    tensor: torch.Tensor = given["self"]
    dim = given.get("dim", default)
    if isinstance(dim, (list, tuple)):
        return math.prod(tensor.shape[each] for each in dim) if dim else tensor.numel()
    return int(tensor.numel() if dim is None or not tensor.dim() else tensor.shape[dim])


def moving_rule(given: Mapping[str, Any]) -> Elements:
    """An operator that moves elements: those of all its tensors that are not indices."""
    found: Elements | None = None
    if given.get("accumulate"):
        return NOTHING
    for name, argument in given.items():
        if name in _INDICES:
            continue
        for each in tensors_of(argument):
            elements = assumed(each)
            found = elements if found is None else found.joined(elements)
    return (found or NOTHING).without_places()


def pointwise_rule(operator: Any) -> Callable[[Mapping[str, Any]], Elements]:
    """Return the rule of an operator of single elements, which the CPU computes for the assumed ones."""
    name = operator._schema.name.partition("::")[2].removesuffix("_")
    is_comparison = name in _COMPARISONS
    only_written = {each.name for each in operator._schema.arguments if each.is_out}

    def rule(given: Mapping[str, Any]) -> Elements:
        tensors = {
            key: each for key, each in given.items() if isinstance(each, torch.Tensor) and key not in only_written
        }
        if not tensors or any(isinstance(each, (list, tuple)) for each in given.values()):
            return NOTHING
        elements = {key: assumed(each) for key, each in tensors.items()}
        is_exact = all(not each.origin for each in elements.values())
        origin = "" if is_exact else name
        value = None
        if all(each.value is not None for each in elements.values()) and not (
            is_comparison and is_mask(elements, given)
        ):
            value = compute({key: each.value for key, each in elements.items()}, given)
        low, high = bounds(elements, given)
        if value is None and low is not None and low == high:
            value = low
        if is_comparison and value is None:
            share = likely(elements, given)
            is_one = all(given[key].numel() == 1 for key in elements)
            return Elements(name, None if share is None or is_one else bool(share), 0, 1, share)
        if value is None and low is None:
            return NOTHING if not is_comparison else Elements(name)
        share = None if value is None or not isinstance(value, bool) else float(value)
        return Elements(origin, value, low, high, share)

    def is_mask(elements: Mapping[str, Elements], given: Mapping[str, Any]) -> bool:
        """Return True for several assumed numbers, such as shares of softmax: a threshold selects an unknown part."""
        return any(
            each.origin and given[key].is_floating_point() and given[key].numel() > 1 for key, each in elements.items()
        )

    def likely(elements: Mapping[str, Elements], given: Mapping[str, Any]) -> float | None:
        """Return what a comparison of an unknown number with a known one says about a number near 1: 1 is True.

        Of many numbers, only one that is far from all of them decides.
        """
        unknown = [key for key, each in elements.items() if each.value is None]
        if len(unknown) == len(elements) > 1:
            return None
        if any(given[key].numel() > 1 for key in elements) and not is_far(unknown, elements, given):
            return None
        chosen = {key: 1 if each.low is None else each.low for key, each in elements.items() if key in unknown}
        found = compute({key: chosen.get(key, each.value) for key, each in elements.items()}, given)
        return None if found is None else float(found)

    def is_far(unknown: Sequence[str], elements: Mapping[str, Elements], given: Mapping[str, Any]) -> bool:
        """Return True if floating-point numbers are compared with a known number that is as good as infinite."""
        known = [each.value for key, each in elements.items() if key not in unknown and each.value is not None]
        known += [each for each in given.values() if isinstance(each, (int, float)) and not isinstance(each, bool)]
        return all(given[key].is_floating_point() for key in unknown) and any(abs(each) >= _FAR for each in known)

    def bounds(elements: Mapping[str, Elements], given: Mapping[str, Any]) -> tuple[int | None, int | None]:
        ends = [(each.low, each.high) for each in elements.values()]
        if name not in _EXTREME_AT_ENDS or len(ends) > _MOST_CORNERS or any(None in each for each in ends):
            return None, None
        if name in _DIVISIONS and not (assumed(given["other"]).low or 0) > 0:
            return None, None
        corners = [compute(dict(zip(elements, each, strict=True)), given) for each in product(*ends)]
        if not all(isinstance(each, int) for each in corners):
            return None, None
        return int(min(corners)), int(max(corners))

    def compute(chosen: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        arguments = dict(given)
        for key, value in chosen.items():
            arguments[key] = torch.tensor(value, dtype=given[key].dtype)
        for key in only_written & given.keys():
            arguments[key] = torch.empty(0, dtype=given[key].dtype)
        if isinstance(arguments.get("device"), torch.device):
            arguments["device"] = torch.device("cpu")
        try:
            with torch.no_grad():
                found = operator(**arguments)
        except Exception:  # noqa: BLE001 -- the CPU has no such kernel, or a value is out of the range of its type
            return None
        return found.item() if isinstance(found, torch.Tensor) and found.numel() == 1 else None

    return rule
