"""The work of a queue that forebay's kernels do."""

from __future__ import annotations

from forebay.backends.nvidia.kernels.draws import launch_draw
from forebay.backends.nvidia.kernels.launch import KernelQueue
from forebay.backends.nvidia.kernels.strided import CopyQueue, launch_strided_copy
from forebay.spi import Draw, StridedCopy

__all__ = ["KernelWork"]


class KernelWork:
    """A part of a queue: the abilities RandomNumbers and StridedCopies."""

    __slots__ = ()

    def draw(self: KernelQueue, draw: Draw) -> None:
        """Queue a random fill."""
        launch_draw(self, draw)

    def copy_strided(self: CopyQueue, copy: StridedCopy) -> None:
        """Queue a strided copy or a fill."""
        launch_strided_copy(self, copy)
