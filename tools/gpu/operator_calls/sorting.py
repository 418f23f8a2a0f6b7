"""Sorts and selections: sort, topk, unique, median, quantile, histograms, searches and permutations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]


def _sort(
    kit: Kit, shape: Sequence[int], dtype: str = "float32", dim: int = -1, stable: bool = False,
    descending: bool = False, layout: str = "", operator: str = "sort",
) -> Run:  # fmt: skip
    torch = kit.torch
    given = kit.tensor(shape, dtype, layout=layout)
    if operator == "argsort":
        return lambda: torch.argsort(given, dim=dim, descending=descending, stable=stable)
    if operator == "msort":
        return lambda: torch.msort(given)
    return lambda: torch.sort(given, dim=dim, stable=stable, descending=descending)


def _topk(
    kit: Kit, shape: Sequence[int], choices: int, dtype: str = "float32", dim: int = -1, sorts: bool = True,
    largest: bool = True, layout: str = "",
) -> Run:  # fmt: skip
    given = kit.tensor(shape, dtype, layout=layout)
    return lambda: kit.torch.topk(given, choices, dim=dim, sorted=sorts, largest=largest)


_SELECTIONS: dict[str, Callable[[Any, Any], object]] = {
    "median": lambda torch, given: torch.median(given),
    "median of dim": lambda torch, given: torch.median(given, dim=-1),
    "nanmedian": lambda torch, given: torch.nanmedian(given),
    "mode": lambda torch, given: torch.mode(given, dim=-1),
    "kthvalue": lambda torch, given: torch.kthvalue(given, 3, dim=-1),
    "quantile": lambda torch, given: torch.quantile(given, 0.9),
    "quantile of dim": lambda torch, given: torch.quantile(given, 0.9, dim=-1),
    "nanquantile": lambda torch, given: torch.nanquantile(given, 0.9, dim=-1),
    "histc": lambda torch, given: torch.histc(given, 100),
    "histc in range": lambda torch, given: torch.histc(given, 100, -3, 3),
    "unique": lambda torch, given: torch.unique(given),
    "unique with inverse": lambda torch, given: torch.unique(given, return_inverse=True),
    "unique with counts": lambda torch, given: torch.unique(given, return_counts=True),
    "unique with both": lambda torch, given: torch.unique(given, return_inverse=True, return_counts=True),
    "unique unsorted": lambda torch, given: torch.unique(given, sorted=False),
    "unique of dim": lambda torch, given: torch.unique(given, dim=0),
    "unique_consecutive": lambda torch, given: torch.unique_consecutive(given),
    "unique_consecutive with both": lambda torch, given: torch.unique_consecutive(
        given, return_inverse=True, return_counts=True
    ),
    "bincount": lambda torch, given: torch.bincount(given.view(-1)),
    "isin": lambda torch, given: torch.isin(given, given.view(-1)[:50]),
    "isin large": lambda torch, given: torch.isin(given, given),
    "sort of a number": lambda torch, given: torch.sort(given.view(-1)[0]),
    "searchsorted": lambda torch, given: torch.searchsorted(torch.sort(given.view(-1))[0], given),
    "bucketize": lambda torch, given: torch.bucketize(given, given.view(-1)[:50]),
    "argmax": lambda torch, given: torch.argmax(given),
    "cummax": lambda torch, given: torch.cummax(given, -1),
}


def _select(kit: Kit, operator: str, shape: Sequence[int], dtype: str = "float32") -> Run:
    given = kit.tensor(shape, dtype)
    function = _SELECTIONS[operator]
    return lambda: function(kit.torch, given)


def _randperm(kit: Kit, elements: int, dtype: str = "int64") -> Run:
    return lambda: kit.torch.randperm(elements, device=kit.device, dtype=kit.dtype(dtype))


def _multinomial(kit: Kit, shape: Sequence[int], choices: int, replacement: bool, dtype: str = "float32") -> Run:
    torch = kit.torch
    weights = torch.rand(shape, device=kit.device).to(kit.dtype(dtype))
    kit.made.append(weights)
    return lambda: torch.multinomial(weights, choices, replacement)


# Sizes around those at which PyTorch changes the kernel: rows of 32, 128, 1024, 2048 and 4096 elements.
_LENGTHS = (4097, 1000, 4096, 100_000, 1_000_000, 128, 2048, 2049, 10_000, 1024, 1025, 32, 33, 10_000_000, 1)
_SORTS: list[dict[str, Any]] = [
    *({"shape": [length]} for length in _LENGTHS),
    *({"shape": [64, length]} for length in (4097, 1000, 4096, 1025, 33, 2049)),
    {"shape": [5000, 4], "dim": 0},
    {"shape": [1000, 1000], "dim": 0},
    {"shape": [4, 5000]},
    {"shape": [1000, 10_000]},
    {"shape": [100_000, 8]},
    {"shape": [8, 100_000], "layout": "sliced"},
    {"shape": [300, 300], "layout": "transposed"},
    {"shape": [2, 3, 5000], "dim": 1},
    *({"shape": [100_000], "dtype": dtype} for dtype in ("int64", "float16", "int32", "float64", "uint8", "bool")),
    *({"shape": [64, 1000], "dtype": dtype} for dtype in ("int64", "float16", "uint8", "bfloat16")),
    *({"shape": [length], "stable": True} for length in (100_000, 1000, 4097)),
    {"shape": [64, 1000], "stable": True},
    {"shape": [100_000], "descending": True},
    {"shape": [64, 1000], "descending": True},
    *({"shape": shape, "operator": "argsort"} for shape in ([100_000], [64, 1000], [64, 5000])),
    {"shape": [5000, 16], "operator": "msort"},
]
_TOPKS: list[dict[str, Any]] = [
    {"shape": shape, "choices": choices, **more}
    for shape, choices, more in (
        ([64, 50_257], 50, {}), ([1_000_000], 10, {}), ([4096, 64], 2, {}), ([64, 50_257], 1, {}),
        ([64, 50_257], 1024, {}), ([64, 50_257], 1025, {}), ([64, 50_257], 5000, {}), ([8, 1_000_000], 100, {}),
        ([64, 50_257], 50, {"sorts": False}), ([64, 50_257], 50, {"dtype": "float16"}), ([5000, 64], 5, {"dim": 0}),
        ([64, 5000], 50, {"layout": "sliced"}), ([64, 50_257], 50, {"largest": False}), ([100, 1000], 1000, {}),
        ([100_000], 33, {"dtype": "int64"}), ([1, 20_000], 16, {}), ([10_000_000], 100, {}), ([64, 5000], 4097, {}),
    )
]  # fmt: skip
_SELECTED: list[dict[str, Any]] = [
    *({"operator": each, "shape": [256, 1000]} for each in _SELECTIONS if each not in ("bincount", "searchsorted")),
    *({"operator": each, "shape": [1_000_000], "dtype": "int64"} for each in (
        "unique", "unique with both", "unique with inverse", "unique_consecutive", "bincount", "searchsorted", "histc",
        "mode", "median", "isin large",
    )),
    *({"operator": each, "shape": [1_000_000]} for each in (
        "median", "nanmedian", "mode", "kthvalue", "quantile", "unique", "argmax", "median of dim", "searchsorted",
    )),
    *({"operator": each, "shape": [10_000], "dtype": "bool"} for each in ("unique", "unique with both")),
    *({"operator": each, "shape": [10, 5000]} for each in ("mode", "median of dim", "kthvalue", "unique of dim")),
    {"operator": "sort of a number", "shape": [1], "dtype": "float32"},
    {"operator": "bincount", "shape": [1000], "dtype": "int64"},
    {"operator": "isin", "shape": [1_000_000], "dtype": "int64"},
    {"operator": "mode", "shape": [64, 2049]},
    {"operator": "mode", "shape": [64, 2048], "dtype": "int64"},
]  # fmt: skip
_DRAWN: list[dict[str, Any]] = [
    *({"shape": [64, 1000], "choices": each, "replacement": with_it} for each in (1, 20) for with_it in (True, False)),
    *({"shape": [50_257], "choices": each, "replacement": with_it} for each in (1, 20) for with_it in (True, False)),
    {"shape": [8, 50_257], "choices": 1, "replacement": True, "dtype": "float16"},
    {"shape": [8, 50_257], "choices": 1, "replacement": False, "dtype": "bfloat16"},
    {"shape": [1000], "choices": 1, "replacement": True},
    {"shape": [4, 100_000], "choices": 300, "replacement": False},
]
_SORTING, _SELECTING = "sorts", "selections"

FAMILIES = {
    _SORTING: [
        *in_proportion(
            [
                calls_of(_SORTING, "sort", _sort, _SORTS),
                calls_of(_SORTING, "topk", _topk, _TOPKS),
                calls_of(_SORTING, "randperm", _randperm, [
                    *crossed(elements=[100_000, 1000, 1_000_000, 30_000, 100, 10_000_000]),
                    {"elements": 1000, "dtype": "int32"},
                ]),
            ]
        )
    ],
    _SELECTING: [
        *in_proportion(
            [
                calls_of(_SELECTING, "select", _select, _SELECTED),
                calls_of(_SELECTING, "multinomial", _multinomial, _DRAWN),
                calls_of(_SELECTING, "select", _select, [_SELECTED[0], _SELECTED[-1]], deterministic=True),
            ]
        )
    ],
}  # fmt: skip
