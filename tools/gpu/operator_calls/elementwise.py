"""Elementwise operators, random numbers, copies and changes of layout: those that need copies or temporary results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]

_Operator = Callable[[Any, Any], Any]  # torch, and a matrix
_OPERATORS: dict[str, _Operator] = {
    "add": lambda torch, given: given + given,
    "add with a type": lambda torch, given: given + given.half(),
    "contiguous of transposed": lambda torch, given: given.t().contiguous(),
    "to float16": lambda torch, given: given.half(),
    "roll": lambda torch, given: torch.roll(given, 3, 0),
    "roll both": lambda torch, given: torch.roll(given, (3, 5), (0, 1)),
    "flip": lambda torch, given: torch.flip(given, (0, 1)),
    "triu": lambda torch, given: torch.triu(given),
    "tril_": lambda torch, given: given.clone().tril_(),
    "triu_indices": lambda torch, given: torch.triu_indices(300, 300, device=given.device),
    "renorm": lambda torch, given: torch.renorm(given, 2, 0, 1.0),
    "where": lambda torch, given: torch.where(given > 0, given, 0.0),
    "where of numbers": lambda torch, given: torch.where(given > 0, 1.0, 0.0),
    "2 ** given": lambda torch, given: 2**given,
    "given ** 2": lambda torch, given: given**2,
    "clamp": lambda torch, given: torch.clamp(given, -1, 1),
    "nan_to_num": lambda torch, given: torch.nan_to_num(given),
    "lerp": lambda torch, given: torch.lerp(given, given, 0.5),
    "addcmul": lambda torch, given: torch.addcmul(given, given, given),
    "broadcast": lambda torch, given: given[:, :1] * given[:1],
    "repeat": lambda torch, given: given.repeat(2, 2),
    "tile": lambda torch, given: torch.tile(given, (2, 2)),
    "rot90": lambda torch, given: torch.rot90(given),
    "diff": lambda torch, given: torch.diff(given),
    "gradient": lambda torch, given: torch.gradient(given),
    "trapezoid": lambda torch, given: torch.trapezoid(given),
    "cov": lambda torch, given: torch.cov(given[:64]),
    "corrcoef": lambda torch, given: torch.corrcoef(given[:64]),
    "vander": lambda torch, given: torch.vander(given[0], 8),
    "diag": lambda torch, given: torch.diag(given[0]),
    "diagonal_scatter": lambda torch, given: torch.diagonal_scatter(given, given.diagonal() + 1),
    "select_scatter": lambda torch, given: torch.select_scatter(given, given[0], 0, 1),
    "outer": lambda torch, given: torch.outer(given[0], given[1]),
    "cross": lambda torch, given: torch.linalg.cross(given[:3].t(), given[:3].t()),
    "complex": lambda torch, given: torch.complex(given, given).abs(),
    "polar": lambda torch, given: torch.polar(given.abs(), given),
    "heaviside": lambda torch, given: torch.heaviside(given, given[0, 0]),
    "cdist": lambda torch, given: torch.cdist(given[:500], given[:400]),
    "cdist without products": lambda torch, given: torch.cdist(
        given[:500], given[:400], compute_mode="donot_use_mm_for_euclid_dist"
    ),
    "cdist p=1": lambda torch, given: torch.cdist(given[:500], given[:400], p=1.0),
    "pdist": lambda torch, given: torch.pdist(given[:200]),
    "cosine_similarity": lambda torch, given: torch.cosine_similarity(given, given + 1),
    "pairwise_distance": lambda torch, given: torch.nn.functional.pairwise_distance(given, given + 1),
    "normalize": lambda torch, given: torch.nn.functional.normalize(given),
    "gelu": lambda torch, given: torch.nn.functional.gelu(given),
    "glu": lambda torch, given: torch.nn.functional.glu(given),
    "silu": lambda torch, given: torch.nn.functional.silu(given),
    "prelu": lambda torch, given: torch.nn.functional.prelu(given, given[0, :1]),
    "logsigmoid": lambda torch, given: torch.nn.functional.logsigmoid(given),
    "rotary": lambda torch, given: torch.cat((-given[:, 1::2], given[:, ::2]), -1) * given + given,
    "weight_norm": lambda torch, given: torch._weight_norm(given, given[:, :1], 0),
    "logical": lambda torch, given: ((given > 0) & (given < 1)) | (given == 2),
    "item": lambda torch, given: given[0, 0].item(),
    "tolist": lambda torch, given: given[0].tolist(),
    "to the CPU": lambda torch, given: given.t().cpu(),
    "print": lambda torch, given: repr(given),
    "isfinite all": lambda torch, given: torch.isfinite(given).all(),
    "copy_ of transposed": lambda torch, given: torch.empty_like(given.t().contiguous()).copy_(given.t()),
    "copy_ with a type": lambda torch, given: torch.empty_like(given, dtype=torch.float16).copy_(given),
    "fake_quantize": lambda torch, given: torch.fake_quantize_per_tensor_affine(given, 0.1, 0, 0, 255),
    "checkpointed gelu": lambda torch, given: torch.utils.checkpoint.checkpoint(
        torch.nn.functional.gelu, given, use_reentrant=False
    ),
}
_GRADIENTS = (
    "gelu", "glu", "silu", "prelu", "logsigmoid", "cdist", "cdist p=1", "pdist", "cosine_similarity", "normalize",
    "weight_norm", "rotary", "where", "given ** 2", "2 ** given", "broadcast", "repeat", "renorm", "clamp", "outer",
    "checkpointed gelu", "cdist without products", "roll", "add with a type", "diff",
)  # fmt: skip
_DRAWS: dict[str, _Operator] = {
    "dropout": lambda torch, given: torch.nn.functional.dropout(given, 0.1),
    "alpha_dropout": lambda torch, given: torch.nn.functional.alpha_dropout(given, 0.1),
    "bernoulli": lambda torch, given: torch.bernoulli(given.sigmoid()),
    "bernoulli in place": lambda torch, given: torch.empty_like(given).bernoulli_(0.5),
    "normal of tensors": lambda torch, given: torch.normal(given, given.abs()),
    "normal of mean": lambda torch, given: torch.normal(given, 1.0),
    "poisson": lambda torch, given: torch.poisson(given.abs()),
    "binomial": lambda torch, given: torch.binomial(given.abs().ceil(), given.sigmoid()),
    "gumbel_softmax": lambda torch, given: torch.nn.functional.gumbel_softmax(given, hard=True),
    "rrelu": lambda torch, given: torch.nn.functional.rrelu(given, training=True),
    "randn": lambda torch, given: torch.randn(given.shape, device=given.device),
    "randint": lambda torch, given: torch.randint(0, 10, given.shape, device=given.device),
    "rand_like": lambda torch, given: torch.rand_like(given),
    "trunc_normal": lambda torch, given: torch.nn.init.trunc_normal_(torch.empty_like(given)),
    "orthogonal": lambda torch, given: torch.nn.init.orthogonal_(torch.empty_like(given[:64, :64])),
    "linspace": lambda torch, given: torch.linspace(0, 1, 1000, device=given.device),
    "arange": lambda torch, given: torch.arange(0, 1000, device=given.device),
    "eye": lambda torch, given: torch.eye(300, device=given.device),
}


def _operate(kit: Kit, operator: str, shape: Sequence[int], direction: str = "forward", dtype: str = "float32") -> Any:
    torch = kit.torch
    function = {**_OPERATORS, **_DRAWS}[operator]
    given = kit.tensor(shape, dtype, grad=direction != "forward" or operator.startswith("checkpointed"))
    if direction == "backward":
        return kit.backward(lambda: function(torch, given), [given])
    run: Run = lambda: function(torch, given)  # noqa: E731 -- typed
    return run


def _new_from_host(kit: Kit, elements: int, pinned: bool) -> Run:
    torch = kit.torch
    host = torch.ones(elements)
    if pinned and kit.device == "cuda":
        host = host.pin_memory()
    return lambda: host.to(kit.device, non_blocking=pinned)


_SHAPE = {"shape": [[1024, 1000]]}
_FAMILY = "elementwise and layout"

FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "elementwise", _operate, crossed(**_SHAPE, operator=[*_OPERATORS])),
                calls_of(_FAMILY, "elementwise", _operate, crossed(
                    **_SHAPE, direction=["backward"], operator=_GRADIENTS)),
                calls_of(_FAMILY, "draw", _operate, crossed(**_SHAPE, operator=[*_DRAWS])),
                calls_of(_FAMILY, "draw", _operate, crossed(
                    **_SHAPE, direction=["training", "backward"], operator=["dropout", "alpha_dropout", "rrelu"])),
                calls_of(_FAMILY, "copy from the host", _new_from_host, crossed(
                    elements=[100_000], pinned=[False, True])),
            ]
        )
    ]
}  # fmt: skip
