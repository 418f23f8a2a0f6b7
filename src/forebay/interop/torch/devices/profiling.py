"""PyTorch's profiler while CUDA devices are emulated: it records the CPU, and its ranges are in memory histories."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.autograd.profiler

from forebay.errors import ForebayWarning
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.runtime.history.annotations import add_annotation

__all__ = ["replace_profiler"]


def replace_profiler(names: NameReplacements) -> None:
    """Let the profiler record the CPU alone. Without CUPTI it would ask for an event of CUDA at each operator."""
    profile = torch.autograd.profiler.profile
    names.replace(profile, "__init__", _of_cpu(profile.__init__))
    # PyTorch's history has the ranges by a callback of C++, which the emulated allocator has not.
    function = torch.autograd.profiler.record_function
    names.replace(function, "__enter__", _begins(function.__enter__))
    names.replace(function, "__exit__", _ends(function.__exit__))


def _begins(enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807 -- replaces that of a class
        entered = enter(self)
        add_annotation(str(self.name), "START", function=True)
        return entered

    return __enter__


def _ends(leave: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(leave)
    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807 -- replaces that of a class
        add_annotation(str(self.name), "END", function=True)
        return leave(self, *error)

    return __exit__


def _of_cpu(initialize: Callable[..., None]) -> Callable[..., None]:
    @wraps(initialize)
    def __init__(self: object, *args: Any, **keywords: Any) -> None:  # noqa: N807 -- replaces that of a class
        if keywords.get("use_cuda") or keywords.get("use_device") == "cuda":
            warnings.warn(
                "emulated devices run no kernels: PyTorch's profiler records the CPU only", ForebayWarning, stacklevel=2
            )
            others = {"use_cuda": False, "use_device": None}  # PyTorch 2.15 has no use_cuda
            keywords |= {"use_cpu": True} | {name: others[name] for name in others.keys() & keywords.keys()}
        initialize(self, *args, **keywords)

    return __init__
