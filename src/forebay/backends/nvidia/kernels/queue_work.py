"""The work of a queue that forebay's kernels do."""

from __future__ import annotations

from forebay.backends.nvidia.kernels.draws import launch_draw
from forebay.backends.nvidia.kernels.launch import KernelQueue
from forebay.spi import Draw

__all__ = ["KernelWork"]


class KernelWork:
    """A part of a queue: the ability RandomNumbers."""

    __slots__ = ()

    def draw(self: KernelQueue, draw: Draw) -> None:
        """Queue a random fill."""
        launch_draw(self, draw)
