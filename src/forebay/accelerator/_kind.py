"""Which kind "the accelerator" is."""

from __future__ import annotations

from functools import cache

from forebay.faces.kind import Kind
from forebay.runtime.devices.current import current_device

__all__ = ["accelerator", "kind_named"]


def accelerator() -> Kind:
    """The kind of this thread's current device; at first the best that is really there. Opens nothing."""
    return kind_named(current_device().kind)


@cache
def kind_named(name: str) -> Kind:
    return Kind(name)
