"""The kernels that this process has compiled, if they are checked."""

from __future__ import annotations

from typing import Any

from forebay._base.kernel_checks import KernelCheck, merged

__all__ = ["begin", "clear", "found", "is_checking", "note", "note_outside"]

_MOST = 1000  # kernels that are kept
_MOST_OUTSIDE = 10  # sentences of one kernel

_checking = False
_found: dict[tuple[Any, ...], KernelCheck] = {}


def begin(*, checks: bool) -> None:
    """Check the kernels of this process from now on, or not."""
    global _checking  # noqa: PLW0603 -- of the process
    _checking = checks


def is_checking() -> bool:
    """Return True if kernels are checked."""
    return _checking


def note(check: KernelCheck) -> None:
    """Note a kernel."""
    if len(_found) < _MOST:
        _found.setdefault(check[:-1], check)


def note_outside(kernel: str, sentence: str) -> None:
    """Note an access outside the memory of tensors of a kernel that is noted."""
    for key, each in _found.items():
        if each.kernel == kernel and len(each.outside) < _MOST_OUTSIDE and sentence not in each.outside:
            _found[key] = each._replace(outside=(*each.outside, sentence))


def found() -> tuple[KernelCheck, ...]:
    """Return the kernels, those with findings first."""
    return merged(_found.values())


def clear() -> None:
    """Forget them: those of the parent in a forked child."""
    _found.clear()
