"""Calls of operators whose allocations are recorded on a GPU, as data: which there are, and in which order they run."""

from __future__ import annotations

from importlib import import_module

from gpu.operator_calls.call import Call, Kit, in_proportion

__all__ = ["Call", "Kit", "catalogue"]

_MODULES = (
    "convolutions", "attention", "products", "sorting", "indexing", "normalization", "recurrent", "reductions",
    "linear_algebra", "transforms", "losses", "images", "lists", "sparse", "elementwise",
)  # fmt: skip
_QUICK = 5  # one call in so many


def catalogue(*, quick: bool = False) -> list[Call]:
    """Return all calls in the order in which they run, so that the same part of each family is done at every moment."""
    modules = [import_module(f"{__name__}.{each}") for each in _MODULES]
    families = {name: calls for module in modules for name, calls in module.FAMILIES.items()}
    if quick:
        families = {name: calls[::_QUICK] for name, calls in families.items()}
    first: list[Call] = import_module(f"{__name__}.products").FIRST
    return [*first, *in_proportion(families.values())]
