"""`torch.backends.cudnn`: settings of a library that is not there. Programs may set them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "allow_tf32",
    "benchmark",
    "benchmark_limit",
    "deterministic",
    "enabled",
    "flags",
    "is_available",
    "set_flags",
    "version",
]

enabled = True
benchmark = False
benchmark_limit = 10
deterministic = False
allow_tf32 = True


def is_available() -> bool:
    """Return False: there is no cuDNN."""
    return False


def version() -> int | None:
    """Return None: there is no cuDNN."""
    return None


_Flags = tuple[bool, bool, int, bool, bool]


def set_flags(
    _enabled: bool | None = None,
    _benchmark: bool | None = None,
    _benchmark_limit: int | None = None,
    _deterministic: bool | None = None,
    _allow_tf32: bool | None = None,
) -> _Flags:
    """Set each setting that is not None, and return all as they were before."""
    before = enabled, benchmark, benchmark_limit, deterministic, allow_tf32
    names = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
    given = (_enabled, _benchmark, _benchmark_limit, _deterministic, _allow_tf32)
    globals().update((name, value) for name, value in zip(names, given, strict=True) if value is not None)
    return before


@contextmanager
def flags(
    enabled: bool | None = False,
    benchmark: bool | None = False,
    benchmark_limit: int | None = 10,
    deterministic: bool | None = False,
    allow_tf32: bool | None = True,
) -> Iterator[None]:
    """Set the settings inside the `with` block; those that are None remain as they are."""
    before = set_flags(enabled, benchmark, benchmark_limit, deterministic, allow_tf32)
    try:
        yield
    finally:
        set_flags(*before)
