"""Getters and setters of `torch._C` for settings of kernels, which are stored in the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.errors import ForebayError
from forebay.names.torch_backends import cuda, cudnn

__all__ = [
    "accessors",
    "get_bf16_reduction",
    "get_fp16_reduction",
    "set_benchmark_limit",
    "set_bf16_reduction",
    "set_fp16_reduction",
]


def accessors(place: Any, attribute: str, function: str) -> tuple[Callable[[], bool], Callable[[bool], None]]:
    """Return a getter and a setter of a setting; `function` is the setter's name in PyTorch's error."""

    def read() -> bool:
        return bool(getattr(place, attribute))

    def write(value: bool, /) -> None:
        if not isinstance(value, bool):
            raise ForebayError(f"{function} expects a bool, but got {type(value).__name__}")
        setattr(place, attribute, value)

    return read, write


def set_benchmark_limit(value: int, /) -> None:
    if value.__class__ is bool or not isinstance(value, int):
        raise ForebayError(f"set_benchmark_limit_cudnn expects an int, but got {type(value).__name__}")
    cudnn.benchmark_limit = value


def get_fp16_reduction() -> tuple[bool, bool]:
    return cuda.matmul.fp16_reduction


def set_fp16_reduction(allow_reduced_precision: bool, allow_splitk: bool = True, /) -> None:
    cuda.matmul.fp16_reduction = _reduction("fp16", allow_reduced_precision, allow_splitk)


def get_bf16_reduction() -> tuple[bool, bool]:
    return cuda.matmul.bf16_reduction


def set_bf16_reduction(allow_reduced_precision: bool, allow_splitk: bool = True, /) -> None:
    cuda.matmul.bf16_reduction = _reduction("bf16", allow_reduced_precision, allow_splitk)


def _reduction(name: str, allow_reduced_precision: bool, allow_splitk: bool) -> tuple[bool, bool]:
    given = {"allow_reduced_precision": allow_reduced_precision, "allow_splitk": allow_splitk}
    for argument, value in given.items():
        if not isinstance(value, bool):
            found = type(value).__name__
            raise ForebayError(f"set_allow_{name}_reduction_cublas expects a bool for {argument}, but got {found}")
    if allow_reduced_precision and not allow_splitk:
        raise ForebayError("allow_splitk=False is not supported when reduced precision reductions are enabled")
    return allow_reduced_precision, allow_splitk
