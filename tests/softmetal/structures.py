"""Structures of Metal, which PyObjC also makes of tuples."""

from __future__ import annotations

from typing import Any, NamedTuple

from .objects import unsigned


class MTLSize(NamedTuple):
    width: int
    height: int
    depth: int


class MTLOrigin(NamedTuple):
    x: int
    y: int
    z: int


def MTLSizeMake(width: int, height: int, depth: int) -> MTLSize:
    return MTLSize(width, height, depth)


def size_of(value: Any, name: str) -> MTLSize:
    """Return an MTLSize argument."""
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise ValueError(f"depythonifying struct of 3 members from {value!r} for {name}")
    return MTLSize(*(unsigned(each, name) for each in value))
