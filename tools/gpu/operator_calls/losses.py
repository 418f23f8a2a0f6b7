"""Losses and softmax, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]


def _cross_entropy(
    kit: Kit, direction: str, rows: int, classes: int, dtype: str = "float32", weighted: bool = False,
    smoothing: float = 0.0, target: str = "indices", reduction: str = "mean", image: int = 0,
) -> Run | tuple[Any, Run]:  # fmt: skip
    torch = kit.torch
    places = [image, image] if image else []
    given = kit.tensor([rows, classes, *places], dtype, grad=direction == "backward")
    if target == "indices":
        wanted = kit.indices([rows, *places], classes)
    else:
        wanted = torch.softmax(kit.tensor([rows, classes, *places], dtype), 1)
    weight = kit.tensor([classes], dtype).abs() if weighted else None

    def forward() -> Any:
        return torch.nn.functional.cross_entropy(given, wanted, weight, label_smoothing=smoothing, reduction=reduction)

    return kit.backward(forward, [given]) if direction == "backward" else forward


def _softmax(
    kit: Kit, operator: str, direction: str, shape: Sequence[int], dim: int = -1, dtype: str = "float32",
    result: str = "",
) -> Run | tuple[Any, Run]:  # fmt: skip
    given = kit.tensor(shape, dtype, grad=direction == "backward")
    function = getattr(kit.torch, operator)
    options = {"dtype": kit.dtype(result)} if result else {}

    def forward() -> Any:
        return function(given, dim, **options)

    return kit.backward(forward, [given]) if direction == "backward" else forward


_Loss = Callable[[Any, Any, Any], Any]  # torch.nn.functional, the input, and the target
_LOSSES: dict[str, _Loss] = {
    "mse_loss": lambda functional, given, wanted: functional.mse_loss(given, wanted),
    "l1_loss": lambda functional, given, wanted: functional.l1_loss(given, wanted),
    "smooth_l1_loss": lambda functional, given, wanted: functional.smooth_l1_loss(given, wanted),
    "huber_loss": lambda functional, given, wanted: functional.huber_loss(given, wanted),
    "binary_cross_entropy": lambda functional, given, wanted: functional.binary_cross_entropy(
        given.sigmoid(), wanted.sigmoid()
    ),
    "binary_cross_entropy_with_logits": lambda functional, given, wanted: functional.binary_cross_entropy_with_logits(
        given, wanted.sigmoid()
    ),
    "kl_div": lambda functional, given, wanted: functional.kl_div(given, wanted.softmax(-1), reduction="batchmean"),
    "cosine_embedding_loss": lambda functional, given, wanted: functional.cosine_embedding_loss(
        given, wanted, wanted[:, 0].sign()
    ),
    "triplet_margin_loss": lambda functional, given, wanted: functional.triplet_margin_loss(given, wanted, wanted + 1),
    "soft_margin_loss": lambda functional, given, wanted: functional.soft_margin_loss(given, wanted.sign()),
    "multi_margin_loss": lambda functional, given, wanted: functional.multi_margin_loss(
        given, wanted[:, 0].long().abs()
    ),
    "multilabel_soft_margin_loss": lambda functional, given, wanted: functional.multilabel_soft_margin_loss(
        given, wanted.sigmoid()
    ),
    "multilabel_margin_loss": lambda functional, given, wanted: functional.multilabel_margin_loss(
        given, wanted.long().abs()
    ),
    "gaussian_nll_loss": lambda functional, given, wanted: functional.gaussian_nll_loss(given, wanted, wanted.exp()),
    "poisson_nll_loss": lambda functional, given, wanted: functional.poisson_nll_loss(given, wanted.abs()),
    "margin_ranking_loss": lambda functional, given, wanted: functional.margin_ranking_loss(
        given, wanted, wanted.sign()
    ),
    "hinge_embedding_loss": lambda functional, given, wanted: functional.hinge_embedding_loss(given, wanted.sign()),
}


def _loss(
    kit: Kit, operator: str, direction: str, shape: Sequence[int], dtype: str = "float32"
) -> Run | tuple[Any, Run]:
    functional, function = kit.torch.nn.functional, _LOSSES[operator]
    given, wanted = kit.tensor(shape, dtype, grad=direction == "backward"), kit.tensor(shape, dtype)
    if direction == "backward":
        return kit.backward(lambda: function(functional, given, wanted), [given])
    return lambda: function(functional, given, wanted)


def _ctc(kit: Kit, direction: str, steps: int, batch: int, classes: int, length: int, by_cudnn: bool) -> Any:
    torch = kit.torch
    given = kit.tensor([steps, batch, classes], grad=direction == "backward")
    kind = torch.int32 if by_cudnn else torch.int64
    place = "cpu" if by_cudnn else kit.device
    length = min(length, steps // 2)
    shape = (batch * length,) if by_cudnn else (batch, length)
    targets = torch.randint(1, classes, shape, dtype=kind, device=place)
    steps_of = torch.full((batch,), steps, dtype=kind, device=place)
    lengths = torch.full((batch,), length, dtype=kind, device=place)

    def forward() -> Any:
        return torch.nn.functional.ctc_loss(given.log_softmax(2), targets, steps_of, lengths)

    return kit.backward(forward, [given]) if direction == "backward" else forward


_BOTH = ("forward", "backward")
_ENTROPY = [
    {"direction": direction, **each}
    for each in (
        {"rows": 2048, "classes": 50_257},
        {"rows": 2048, "classes": 50_257, "dtype": "bfloat16"},
        {"rows": 256, "classes": 1000, "smoothing": 0.1},
        {"rows": 256, "classes": 1000, "weighted": True},
        {"rows": 256, "classes": 1000, "target": "probabilities"},
        {"rows": 2, "classes": 21, "image": 256},
        {"rows": 256, "classes": 1000, "reduction": "none"},
        {"rows": 256, "classes": 1000, "weighted": True, "smoothing": 0.1},
        {"rows": 100_000, "classes": 10},
    )
    for direction in _BOTH
]
_SOFTMAX = [
    {"operator": operator, "direction": direction, **each}
    for each in (
        {"shape": [8192, 1024]},
        {"shape": [8192, 1025]},
        {"shape": [512, 50_257]},
        {"shape": [512, 50_257], "dtype": "float16"},
        {"shape": [32, 21, 64, 64], "dim": 1},
        {"shape": [4, 12, 1024, 1024], "dtype": "bfloat16"},
        {"shape": [512, 4096], "dtype": "float16", "result": "float32"},
        {"shape": [1000, 64], "dim": 0},
    )
    for operator in ("softmax", "log_softmax")
    for direction in _BOTH
]
_FAMILY = "losses"

FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "cross_entropy", _cross_entropy, _ENTROPY),
                calls_of(_FAMILY, "softmax", _softmax, _SOFTMAX),
                calls_of(_FAMILY, "loss", _loss, [
                    *crossed(operator=[*_LOSSES], direction=_BOTH, shape=[[256, 1000]]),
                    *crossed(operator=["mse_loss", "binary_cross_entropy", "l1_loss"], direction=_BOTH,
                             shape=[[10_000_000]]),
                ]),
                calls_of(_FAMILY, "ctc_loss", _ctc, crossed(
                    direction=_BOTH, steps=[200], batch=[16], classes=[32], length=[40], by_cudnn=[True, False])),
            ]
        )
    ]
}  # fmt: skip
