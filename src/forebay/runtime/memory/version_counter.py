"""Counters of in-place changes (`torch.Tensor._version`)."""

from __future__ import annotations

__all__ = ["VersionCounter"]


class VersionCounter:
    """Number of in-place changes to a tensor, which its views count with it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0
