"""Allocator settings of this process: read from the environment at the first use, changed by `apply`.

# Note [Settings of a program]
PyTorch reads its variables at the first use of a device, and programs set them in their first lines. The commands that
run a program in their own process open the CPU device before it, and so read the variables too early. They call
`read_again` before the program begins: the first use after that reads them as the program has left them, and devices
that are open already keep what they have. Rejected: reading the variables at each use, as PyTorch ignores what is
set later.
Test: tests/process/test_run_torch_settings.py::test_settings_that_a_program_makes_before_its_import_of_pytorch_apply
"""

from __future__ import annotations

import os
import warnings
from typing import Protocol
from weakref import WeakSet

from forebay.errors import ForebayWarning
from forebay.runtime.settings import configuration
from forebay.runtime.settings.allocator_settings import DEFAULT, AllocatorSettings
from forebay.runtime.settings.parser import SettingsError

__all__ = [
    "apply",
    "at_first_use",
    "caching",
    "current",
    "enable_caching",
    "for_devices",
    "keep_for_kind",
    "read_again",
    "subscribe",
]


class _Follower(Protocol):
    """An allocator, or another object that follows the settings."""

    def apply_settings(self, settings: AllocatorSettings) -> None: ...


_followers: WeakSet[_Follower] = WeakSet()
_current: AllocatorSettings | None = None
_at_first_use: dict[str, AllocatorSettings] = {}  # by kind
_NO_CACHE = ("FOREBAY_NO_MEMORY_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def _is_cached() -> bool:
    return all(os.environ.get(name, "") != "1" for name in _NO_CACHE)


caching: bool = _is_cached()  # whether freed memory is cached
_switched = False  # `enable_caching` was called


def current(*, common_first: bool = False) -> AllocatorSettings:
    """Return the current settings. Raise ValueError, naming the variable, if the environment is invalid.

    `common_first`: of several errors, the one is raised that PyTorch's functions for all accelerators raise.
    """
    global _current, caching  # noqa: PLW0603 -- one set of settings per process, as PyTorch
    if _current is None:
        caching = caching if _switched else _is_cached()
        _current = configuration.from_environment(common_first=common_first)
        _check_backend(_current)
    return _current


def for_devices() -> AllocatorSettings:
    """Return the settings for device memory. Raise ValueError as `current`.

    With another backend than the native one, PyTorch does not read the other keys here: those before an error apply.
    """
    try:
        return current()
    except SettingsError as error:
        if error.applied.backend == DEFAULT.backend:
            raise
        _check_backend(error.applied)
        return error.applied


def read_again() -> None:
    """Read the environment at the next use as at the first one: Note [Settings of a program]."""
    global _current, _switched
    _current, _switched = None, False
    _at_first_use.clear()


def _check_backend(settings: AllocatorSettings) -> None:
    if settings.backend != DEFAULT.backend:
        message = f"backend:{settings.backend} is not available in forebay: using its native allocator"
        warnings.warn(message, ForebayWarning, stacklevel=3)


def apply(text: str) -> None:
    """Change the settings of all devices, open ones included. Raise ValueError with PyTorch's text if invalid.

    Keys before an error take effect, as in PyTorch.
    """
    configuration.change(text, current(common_first=True), _set)


def at_first_use(kind: str) -> AllocatorSettings:
    """Return the settings at the kind's first use: PyTorch's allocators keep some of these values."""
    return _at_first_use.get(kind) or for_devices()


def keep_for_kind(kind: str) -> None:
    """Keep the settings at the kind's first use, for `at_first_use`. Called before it."""
    _at_first_use[kind] = for_devices()


def subscribe(allocator: _Follower) -> None:
    """Apply each later change of the settings to the allocator as well."""
    _followers.add(allocator)


def _set(new: AllocatorSettings) -> None:
    global _current  # noqa: PLW0603 -- as above
    _current = new
    for allocator in tuple(_followers):
        allocator.apply_settings(new)


def enable_caching(on: bool) -> None:
    global caching, _switched
    caching, _switched = on, True
