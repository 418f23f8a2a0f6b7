"""Operators whose kernels for CUDA have no deterministic form: `torch.use_deterministic_algorithms` refuses them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["with_alert"]

_HELP = (
    "file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for "
    "this operation."
)
# The name in PyTorch's text by the operator, as PyTorch 2.15 uses it.
_ALWAYS = {
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "_upsample_bicubic2d_aa_backward": "upsample_bicubic2d_aa_backward_out_cuda",
    "_upsample_bilinear2d_aa_backward": "upsample_bilinear2d_aa_backward_out_cuda",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
    "index_reduce": "index_reduce_cuda",
    "index_reduce_": "index_reduce_cuda",
    "max_pool3d_with_indices_backward": "max_pool3d_with_indices_backward_cuda",
    "max_unpool2d": "max_unpooling2d_forward_out",
    "max_unpool3d": "max_unpooling3d_forward_out",
    "put_": "put_",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
}
# Those for some arguments only, with the condition.
_Condition = Callable[..., bool]
_SOMETIMES: dict[str, tuple[str, _Condition]] = {
    "_embedding_bag_backward": ("embedding_bag_backward_cuda_max", lambda *args, **_: bool(args[8] == 2)),
    "bincount": ("_bincount_cuda", lambda _, weights=None, *_args, **__: weights is not None),
    "histc": ("_histc_cuda with floating point input", lambda given, *_, **__: bool(given.is_floating_point())),
    "median.dim_values": ("median CUDA with indices output", lambda *_, **__: True),
    "nanmedian.dim_values": ("median CUDA with indices output", lambda *_, **__: True),
    "nll_loss2d_forward": (
        "nll_loss2d_forward_out_cuda_template", lambda _given, _target, _weight, reduction, *_: bool(reduction),
    ),
    "scatter_reduce.two": ("scatter_reduce_cuda_prod_", lambda *args, **_: bool(args[4] == "prod")),
    "scatter_reduce_.two": ("scatter_reduce_cuda_prod_", lambda *args, **_: bool(args[4] == "prod")),
}  # fmt: skip


def with_alert(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that refuses the call, or warns, where PyTorch does; `kernel` itself for most operators."""
    full = name.partition("::")[2]
    short, _, overload = full.partition(".")
    condition: _Condition | None = None
    if full in _SOMETIMES:
        caller, condition = _SOMETIMES[full]
    elif short in _ALWAYS and not overload.endswith("out"):
        caller = _ALWAYS[short]
    else:
        return kernel

    def run(*args: Any, **keywords: Any) -> Any:
        if torch.are_deterministic_algorithms_enabled() and (condition is None or condition(*args, **keywords)):
            _alert(caller)
        return kernel(*args, **keywords)

    return run


def _alert(caller: str) -> None:
    begin = f"{caller} does not have a deterministic implementation, but you set "
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(
            f"{begin}'torch.use_deterministic_algorithms(True, warn_only=True)'. You can {_HELP}",
            UserWarning,
            stacklevel=2,
        )
        return
    raise RuntimeError(
        f"{begin}'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or "
        "you can use the 'warn_only=True' option, if that's acceptable for your application. You can also "
        f"{_HELP}"
    )
