"""Reductions, whose blocks of threads share buffers in global memory, and cumulative operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]

_OPERATORS: dict[str, Callable[[Any, Any, Any], object]] = {
    "sum": lambda torch, given, dim: torch.sum(given, dim),
    "mean": lambda torch, given, dim: torch.mean(given, dim),
    "argmax": lambda torch, given, dim: torch.argmax(given, None if dim is None else dim[0]),
    "var": lambda torch, given, dim: torch.var(given, dim),
    "norm": lambda torch, given, dim: torch.linalg.vector_norm(given, dim=dim),
    "amax": lambda torch, given, dim: torch.amax(given, () if dim is None else dim),
    "std_mean": lambda torch, given, dim: torch.std_mean(given, dim),
    "max": lambda torch, given, dim: torch.max(given) if dim is None else torch.max(given, dim[0]),
    "any": lambda torch, given, dim: torch.any(given > 0) if dim is None else torch.any(given > 0, dim[0]),
    "prod": lambda torch, given, dim: torch.prod(given) if dim is None else torch.prod(given, dim[0]),
    "logsumexp": lambda torch, given, dim: torch.logsumexp(given, [0] if dim is None else dim),
    "aminmax": lambda torch, given, dim: torch.aminmax(given, dim=None if dim is None else dim[0]),
    "nansum": lambda torch, given, dim: torch.nansum(given, dim),
    "norm inf": lambda torch, given, dim: torch.linalg.vector_norm(given, float("inf"), dim=dim),
    "norm 1": lambda torch, given, dim: torch.linalg.vector_norm(given, 1, dim=dim),
    "norm 3": lambda torch, given, dim: torch.linalg.vector_norm(given, 3, dim=dim),
    "sum to float32": lambda torch, given, dim: torch.sum(given, dim, dtype=torch.float32),
    "all close": lambda torch, given, dim: torch.allclose(given, given),
    "equal": lambda torch, given, dim: torch.equal(given, given),
    "trace": lambda torch, given, dim: torch.trace(given.view(given.shape[0], -1)),
    "dist": lambda torch, given, dim: torch.dist(given, given),
    "sum to a shape": lambda torch, given, dim: given.sum_to_size(given.shape[0], *[1] * (given.dim() - 1)),
}


def _reduce(
    kit: Kit, operator: str, shape: Sequence[int], dim: Sequence[int] | None = None, dtype: str = "float32",
    layout: str = "",
) -> Run:  # fmt: skip
    given = kit.tensor(shape, dtype, layout=layout)
    function = _OPERATORS[operator]
    return lambda: function(kit.torch, given, dim)


def _accumulate(
    kit: Kit, operator: str, shape: Sequence[int], dim: int = -1, dtype: str = "float32", direction: str = "forward",
    layout: str = "",
) -> Run | tuple[Any, Run]:  # fmt: skip
    torch = kit.torch
    given = kit.tensor(shape, dtype, grad=direction == "backward", layout=layout)
    function = getattr(torch, operator)

    def forward() -> Any:
        found = function(given, dim)
        return found[0] if direction == "backward" and isinstance(found, tuple) else found

    return kit.backward(forward, [given]) if direction == "backward" else forward


_IMAGES = [32, 64, 56, 56]
_PLACES: tuple[dict[str, Any], ...] = (
    {"shape": [10_000_000]},
    {"shape": [64, 1_000_000], "dim": [1]},
    {"shape": [100_000, 64], "dim": [0]},
    {"shape": _IMAGES, "dim": [0, 2, 3]},
    {"shape": [1_000_000], "dtype": "bfloat16"},
)
_SUMS: tuple[dict[str, Any], ...] = (
    *({"shape": [each]} for each in (1000, 10_000, 32_768, 65_536, 100_000, 131_072, 262_144, 524_288, 1_000_000,
                                     100_000_000)),
    {"shape": [8192, 50_257], "dim": [1]},
    {"shape": [8192, 768], "dim": [0]},
    {"shape": [1_000_000, 3], "dim": [0]},
    {"shape": [1_000_001, 5], "dim": [0]},
    {"shape": [3, 1_000_001], "dim": [1]},
    {"shape": [16, 16, 100_000], "dim": [0, 2]},
    {"shape": [64, 4096, 64], "dim": [1]},
    {"shape": _IMAGES, "dim": [2, 3]},
    {"shape": _IMAGES, "dim": [1]},
    {"shape": _IMAGES, "dim": [0, 2, 3], "layout": "channels_last"},
    {"shape": _IMAGES, "dim": [0, 2, 3], "dtype": "float16"},
    {"shape": [4000, 4000], "layout": "transposed"},
    {"shape": [4000, 4000], "layout": "sliced"},
    {"shape": [4000, 4001], "layout": "transposed", "dim": [0]},
    *({"shape": [10_000_000], "dtype": each} for each in ("float16", "float64", "int64", "int32", "bool", "uint8",
                                                          "complex64")),
    {"shape": [2, 100_000], "dim": [1]},
    {"shape": [132, 20_000], "dim": [1]},
    {"shape": [264, 20_000], "dim": [1]},
    {"shape": [1056, 20_000], "dim": [1]},
)  # fmt: skip
_CUMULATIVE = [
    *({"operator": "cumsum", "shape": each} for each in ([1_000_000], [1000], [64, 100_000], [1000, 64], [10_000_000],
                                                         [8, 1024], [4097])),
    *crossed(operator=["cumprod", "logcumsumexp", "cummax", "cummin"], shape=[[1_000_000], [64, 5000]]),
    *({"operator": "cumsum", "shape": [1_000_000], "dtype": each} for each in ("int64", "bool", "float16", "bfloat16",
                                                                               "int32", "float64")),
    {"operator": "cumsum", "shape": [1000, 1000], "dim": 0},
    {"operator": "cumsum", "shape": [1000, 1000], "layout": "sliced"},
    {"operator": "cumsum", "shape": [64, 10], "dtype": "bool"},
    *({"operator": each, "shape": [64, 5000], "direction": "backward"} for each in ("cumsum", "cumprod", "logcumsumexp",
                                                                                    "cummax")),
]  # fmt: skip

FAMILIES = {
    "reductions": [
        *in_proportion(
            [
                calls_of("reductions", "reduce", _reduce, [{"operator": "sum", **each} for each in _SUMS]),
                calls_of("reductions", "reduce", _reduce, [
                    {"operator": operator, **place} for place in _PLACES for operator in _OPERATORS
                    if not (operator == "trace" and len(place["shape"]) != 2)
                ]),
            ]
        )
    ],
    "cumulative operators": [
        *calls_of("cumulative operators", "accumulate", _accumulate, _CUMULATIVE),
        *calls_of("cumulative operators", "accumulate", _accumulate, _CUMULATIVE[:2], deterministic=True),
    ],
}  # fmt: skip
