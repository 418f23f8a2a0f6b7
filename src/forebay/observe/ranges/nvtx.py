"""NVIDIA's NVTX as a tool that hears of our ranges, through its own Python package. ImportError where that is not."""

from __future__ import annotations

import nvtx
from nvtx.nvtx import DummyDomain

from forebay.observe.ranges.ranges import Range

__all__ = ["NvtxLibrary"]


class NvtxLibrary:
    """NVTX's default domain."""

    def __init__(self) -> None:
        self._numbers: dict[int, object] = {}  # ours, and what NVTX gave for it

    @property
    def heard(self) -> bool:
        """Whether a profiler listens: else every call would go nowhere."""
        return not isinstance(nvtx.get_domain(), DummyDomain)

    def push(self, name: str) -> None:
        nvtx.push_range(name)

    def pop(self, ended: Range) -> None:  # noqa: ARG002 -- NVTX has its own clock
        nvtx.pop_range()

    def start(self, number: int, name: str) -> None:
        self._numbers[number] = nvtx.start_range(name)

    def end(self, number: int, ended: Range) -> None:  # noqa: ARG002 -- as above
        if (theirs := self._numbers.pop(number, None)) is not None:
            nvtx.end_range(theirs)

    def mark(self, at: Range) -> None:
        nvtx.mark(at.name)
