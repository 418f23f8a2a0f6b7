"""The allocator's settings of this process: the environment's when the first device opens, changed by `apply`."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING
from weakref import WeakSet

from forebay.errors import ForebayWarning
from forebay.runtime.settings import allocator_settings
from forebay.runtime.settings.allocator_settings import DEFAULT, AllocatorSettings

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator

__all__ = ["apply", "caching", "current", "enable_caching", "follow"]

_followers: WeakSet[Allocator] = WeakSet()
_now: AllocatorSettings | None = None
_NO_CACHE = ("FOREBAY_NO_MEMORY_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING")
caching = all(os.environ.get(name, "") != "1" for name in _NO_CACHE)  # whether memory given back is kept for the next


def current() -> AllocatorSettings:
    """What holds now. Raises ValueError, naming the variable, where the environment makes no sense."""
    global _now  # noqa: PLW0603 -- one process has one set of settings, as PyTorch
    if _now is None:
        _now = allocator_settings.from_environment()
        if _now.backend != DEFAULT.backend:
            warnings.warn(
                f"backend:{_now.backend} is not forebay's: its own allocator serves", ForebayWarning, stacklevel=2
            )
    return _now


def apply(text: str) -> None:
    """New settings for all devices, those opened already as well. Raises ValueError with PyTorch's words.

    What stands before the mistake holds in spite of it, as in PyTorch.
    """
    allocator_settings.change(text, current(), _set)


def follow(allocator: Allocator) -> None:
    """The allocator has the settings of the process from now on."""
    _followers.add(allocator)


def _set(new: AllocatorSettings) -> None:
    global _now  # noqa: PLW0603 -- as above
    _now = new
    for allocator in tuple(_followers):
        allocator.apply_settings(new)


def enable_caching(on: bool) -> None:
    global caching  # noqa: PLW0603 -- as above
    caching = on
