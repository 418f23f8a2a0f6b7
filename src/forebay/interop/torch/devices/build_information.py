"""Answers about PyTorch's CUDA libraries: the description of the build, and the plans of cuFFT.

A build without CUDA, and one without a driver, raise errors there, as they have no answer.
"""

from __future__ import annotations

import torch

from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["describe_build", "replace_build_information"]

_DEFAULT_PLANS = 4096  # PyTorch's limit of a cache of plans


def describe_build() -> str:
    """Return PyTorch's own description of its build, before CUDA devices are emulated; "" if it has none."""
    try:
        return str(torch._C._show_config())
    except RuntimeError:
        return ""


def replace_build_information(names: NameReplacements, described: str) -> None:
    """Describe the build as one with CUDA, and keep the limits of cuFFT's caches, which stay empty."""
    limits: dict[int, int] = {}

    def size(_device: int) -> int:
        return 0

    def limit(device: int) -> int:
        return limits.get(device, _DEFAULT_PLANS)

    def set_limit(device: int, value: int) -> None:
        if value < 0:
            raise RuntimeError(f"cuFFT plan cache size must be non-negative, but got {value}")
        limits[device] = value

    def clear(_device: int) -> None:
        pass

    names.replace(torch._C, "_show_config", lambda: _with_cuda(described))
    cache = vars(torch.backends.cuda.cuFFTPlanCache)
    for name, replacement in (
        ("_cufft_get_plan_cache_size", size),
        ("_cufft_get_plan_cache_max_size", limit),
        ("_cufft_set_plan_cache_max_size", set_limit),
        ("_cufft_clear_plan_cache", clear),
    ):
        names.replace(torch, name, replacement)
    names.replace(cache["size"], "getter", size)  # these two keep PyTorch's functions
    names.replace(cache["max_size"], "getter", limit)
    names.replace(cache["max_size"], "setter", set_limit)


def _with_cuda(described: str) -> str:
    """Return the description with the lines of CUDA, where a build with CUDA has them."""
    if "CUDA Runtime" in described:
        return described
    capabilities = [each.removeprefix("sm_") for each in torch.cuda.get_arch_list()]
    flags = ";".join(f"-gencode;arch=compute_{each},code=sm_{each}" for each in capabilities)
    lines = f"  - CUDA Runtime {torch.version.cuda}\n  - NVCC architecture flags: {flags}\n"
    head, settings, rest = described.partition("  - Build settings:")
    return f"{head}{lines}{settings}{rest}"
