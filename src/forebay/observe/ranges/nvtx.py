"""NVTX as a tool, through NVIDIA's own package. Raises ImportError without the package."""

from __future__ import annotations

import nvtx
from nvtx.nvtx import DummyDomain

from forebay.observe.ranges.range import Range

__all__ = ["NvtxLibrary"]


class NvtxLibrary:
    """NVTX's default domain as a `Tool`."""

    def __init__(self) -> None:
        self._ids: dict[int, object] = {}  # NVTX's range ids, by the numbers of `ranges`

    @property
    def profiler_attached(self) -> bool:
        """True if a profiler is attached; otherwise NVTX's calls have no effect."""
        return not isinstance(nvtx.get_domain(), DummyDomain)

    def push(self, name: str) -> None:
        nvtx.push_range(name)

    def pop(self, ended: Range) -> None:  # noqa: ARG002 -- NVTX reads its own clock
        nvtx.pop_range()

    def start(self, number: int, name: str) -> None:
        self._ids[number] = nvtx.start_range(name)

    def end(self, number: int, ended: Range) -> None:  # noqa: ARG002 -- as above
        if (range_id := self._ids.pop(number, None)) is not None:
            nvtx.end_range(range_id)

    def mark(self, at: Range) -> None:
        nvtx.mark(at.name)
