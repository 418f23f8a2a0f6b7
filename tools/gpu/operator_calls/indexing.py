"""Indexing, scattering and embeddings, forward and backward, by the number of indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]


def _embedding(
    kit: Kit, direction: str, indices: int, rows: int = 50_000, columns: int = 256, dtype: str = "float32",
    padding: bool = False, scales: bool = False, index: str = "int64", sparse: bool = False,
) -> Run | tuple[Any, Run]:  # fmt: skip
    functional = kit.torch.nn.functional
    weight = kit.tensor([rows, columns], dtype, grad=direction == "backward")
    chosen = kit.indices([indices], rows, index)

    def forward() -> Any:
        return functional.embedding(
            chosen, weight, padding_idx=0 if padding else None, scale_grad_by_freq=scales, sparse=sparse
        )

    return kit.backward(forward, [weight]) if direction == "backward" else forward


def _bags(
    kit: Kit, direction: str, mode: str, bags: int = 500, length: int = 20, rows: int = 50_000, columns: int = 128,
    dtype: str = "float32", weighted: bool = False, scales: bool = False,
) -> Run | tuple[Any, Run]:  # fmt: skip
    torch = kit.torch
    weight = kit.tensor([rows, columns], dtype, grad=direction == "backward")
    chosen = kit.indices([bags * length], rows)
    starts = torch.arange(0, bags * length, length, device=kit.device)
    each = kit.tensor([bags * length], dtype) if weighted else None

    def forward() -> Any:
        return torch.nn.functional.embedding_bag(
            chosen, weight, starts, mode=mode, per_sample_weights=each, scale_grad_by_freq=scales
        )

    return kit.backward(forward, [weight]) if direction == "backward" else forward


def _put(
    kit: Kit, indices: int, rows: int = 50_000, columns: int = 64, dtype: str = "float32", accumulate: bool = True,
    dimensions: int = 1, value: str = "tensor", index: str = "int64",
) -> Run:  # fmt: skip
    torch = kit.torch
    shape = [rows, columns] if dimensions == 1 else [rows, 8, columns] if dimensions == 2 else [rows]
    target = kit.tensor(shape, dtype)
    chosen = [kit.indices([indices], rows, index)]
    if dimensions == 2:
        chosen.append(kit.indices([indices], 8, index))
    kept = [columns] if dimensions else []
    source = kit.tensor([] if value == "number" else [indices, *kept], dtype)
    return lambda: torch.ops.aten.index_put_(target, chosen, source, accumulate)


def _index(kit: Kit, direction: str, indices: int, rows: int = 50_000, columns: int = 64, kind: str = "rows") -> Any:
    torch = kit.torch
    given = kit.tensor([rows, columns], grad=direction == "backward")
    if kind == "mask":
        mask = kit.tensor([rows], "bool")
        forward: Callable[[], Any] = lambda: given[mask]  # noqa: E731 -- one of several
    elif kind == "pairs":
        pairs = kit.indices([indices], rows), kit.indices([indices], columns)
        forward = lambda: given[pairs]  # noqa: E731 -- one of several
    elif kind == "columns":
        chosen = kit.indices([indices], columns)
        forward = lambda: given[:, chosen]  # noqa: E731 -- one of several
    elif kind == "host":
        host = torch.randint(0, rows, (indices,))
        forward = lambda: given[host]  # noqa: E731 -- one of several
    elif kind == "index_select":
        chosen = kit.indices([indices], rows)
        forward = lambda: torch.index_select(given, 0, chosen)  # noqa: E731 -- one of several
    elif kind == "gather":
        chosen = kit.indices([indices, columns], rows)
        forward = lambda: torch.gather(given, 0, chosen)  # noqa: E731 -- one of several
    else:
        chosen = kit.indices([indices], rows)
        forward = lambda: given[chosen]  # noqa: E731 -- one of several
    return kit.backward(forward, [given]) if direction == "backward" else forward


_Change = Callable[[Any, Any, Any, Any, Any], object]  # torch, target, indices of rows, of elements, and source
_CHANGES: dict[str, _Change] = {
    "index_add": lambda torch, target, rows, each, source: torch.index_add(target, 0, rows, source),
    "index_add in place": lambda torch, target, rows, each, source: target.index_add_(0, rows, source),
    "index_add of columns": lambda torch, target, rows, each, source: target.index_add_(
        1, rows % target.shape[1], target[:, :1].expand(-1, len(rows))
    ),
    "index_copy": lambda torch, target, rows, each, source: torch.index_copy(target, 0, rows, source),
    "index_fill": lambda torch, target, rows, each, source: torch.index_fill(target, 0, rows, 1.0),
    "index_reduce mean": lambda torch, target, rows, each, source: target.index_reduce(0, rows, source, "mean"),
    "index_reduce amax": lambda torch, target, rows, each, source: target.index_reduce(0, rows, source, "amax"),
    "scatter": lambda torch, target, rows, each, source: torch.scatter(target, 0, each, source),
    "scatter_add": lambda torch, target, rows, each, source: torch.scatter_add(target, 0, each, source),
    "scatter_reduce sum": lambda torch, target, rows, each, source: torch.scatter_reduce(
        target, 0, each, source, "sum"
    ),
    "scatter_reduce mean": lambda torch, target, rows, each, source: torch.scatter_reduce(
        target, 0, each, source, "mean"
    ),
    "scatter_reduce amax": lambda torch, target, rows, each, source: torch.scatter_reduce(
        target, 0, each, source, "amax", include_self=False
    ),
    "take": lambda torch, target, rows, each, source: torch.take(target, each),
    "put accumulate": lambda torch, target, rows, each, source: target.put_(each, source, accumulate=True),
    "take_along_dim": lambda torch, target, rows, each, source: torch.take_along_dim(target, each, 0),
    "masked_select": lambda torch, target, rows, each, source: torch.masked_select(target, target > 0),
    "masked_fill": lambda torch, target, rows, each, source: torch.masked_fill(target, target > 0, 0.0),
    "masked_scatter": lambda torch, target, rows, each, source: torch.masked_scatter(target, target > 1.5, target + 1),
    "nonzero": lambda torch, target, rows, each, source: torch.nonzero(target > 0),
    "nonzero of few": lambda torch, target, rows, each, source: torch.nonzero(target > 3.5),
    "nonzero static": lambda torch, target, rows, each, source: torch.nonzero_static(target > 0, size=100),
    "argwhere": lambda torch, target, rows, each, source: torch.argwhere(target > 2),
    "where with one argument": lambda torch, target, rows, each, source: torch.where(target > 2),
    "count_nonzero": lambda torch, target, rows, each, source: torch.count_nonzero(target),
    "repeat_interleave by counts": lambda torch, target, rows, each, source: torch.repeat_interleave(
        target[:30], rows[:30] % 5, dim=0
    ),
    "repeat_interleave": lambda torch, target, rows, each, source: torch.repeat_interleave(target[:1000], 3, dim=0),
    "one_hot": lambda torch, target, rows, each, source: torch.nn.functional.one_hot(rows % 100, 100),
    "one_hot of unknown size": lambda torch, target, rows, each, source: torch.nn.functional.one_hot(rows % 100),
    "segment_reduce": lambda torch, target, rows, each, source: torch.segment_reduce(
        source, "mean", lengths=torch.full((10,), len(source) // 10, device=source.device), unsafe=True, axis=0
    ),
}


def _change(
    kit: Kit, operator: str, indices: int, rows: int = 50_000, columns: int = 64, dtype: str = "float32"
) -> Run:
    target, source = kit.tensor([rows, columns], dtype), kit.tensor([indices, columns], dtype)
    chosen, each = kit.indices([indices], rows), kit.indices([indices, columns], rows)
    function = _CHANGES[operator]
    return lambda: function(kit.torch, target, chosen, each, source)


# Around 3072 (embeddings), 4864 (an assumption about the sort by CUB), and powers of two.
_COUNTS = (3073, 4864, 4865, 1000, 100_000, 3072, 1, 128, 8192, 16_384, 5000, 1_000_000)
_EMBEDDINGS: list[dict[str, Any]] = [
    *({"direction": "backward", "indices": each} for each in _COUNTS),
    {"direction": "forward", "indices": 8192},
    *(
        {"direction": "backward", "indices": each, **more}
        for each in (8192, 100)
        for more in (
            {"padding": True}, {"scales": True}, {"dtype": "bfloat16"}, {"columns": 4096}, {"index": "int32"},
            {"rows": 100}, {"sparse": True},
        )
    ),
]  # fmt: skip
_BAGS: list[dict[str, Any]] = [
    *crossed(direction=["forward", "backward"], mode=["sum", "mean", "max"]),
    {"direction": "backward", "mode": "sum", "bags": 10, "length": 10},
    {"direction": "backward", "mode": "sum", "weighted": True},
    {"direction": "backward", "mode": "mean", "scales": True},
    {"direction": "backward", "mode": "sum", "dtype": "float16"},
]
_PUTS: list[dict[str, Any]] = [
    *({"indices": each} for each in _COUNTS),
    *({"indices": each, "columns": 1} for each in (2048, 2049, 4000, 6000, 10_000)),
    {"indices": 5000, "dimensions": 2},
    {"indices": 5000, "dimensions": 0},
    {"indices": 5000, "value": "number", "dimensions": 0},
    {"indices": 5000, "accumulate": False},
    {"indices": 5000, "dtype": "bfloat16"},
    {"indices": 5000, "index": "int32"},
    {"indices": 5000, "rows": 10},
]
_INDEXES: list[dict[str, Any]] = [
    {"direction": direction, "indices": indices, "kind": kind}
    for indices in (5000, 100, 100_000)
    for kind in ("rows", "pairs", "columns", "mask", "host", "index_select", "gather")
    for direction in ("backward", "forward")
]
_FAMILY = "indexing"
_DETERMINISTIC = ("index_add", "scatter_add", "index_copy", "scatter", "put accumulate", "scatter_reduce sum")

FAMILIES = {
    "embeddings": [
        *in_proportion(
            [
                calls_of("embeddings", "embedding", _embedding, _EMBEDDINGS),
                calls_of("embeddings", "embedding_bag", _bags, _BAGS),
            ]
        )
    ],
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "index_put", _put, _PUTS),
                calls_of(_FAMILY, "index", _index, _INDEXES),
                calls_of(_FAMILY, "change", _change, crossed(indices=[5000], operator=[*_CHANGES])),
                calls_of(_FAMILY, "change", _change, crossed(indices=[5000], operator=_DETERMINISTIC),
                         deterministic=True),
                calls_of(_FAMILY, "index_put", _put, [{"indices": 5000, "accumulate": False}, {"indices": 1000}],
                         deterministic=True),
                calls_of(_FAMILY, "change", _change, [
                    {"operator": each, "indices": 100, "rows": 1_000_000, "columns": 1}
                    for each in ("nonzero", "masked_select", "masked_scatter", "nonzero static", "index_add")
                ]),
            ]
        )
    ],
}  # fmt: skip
