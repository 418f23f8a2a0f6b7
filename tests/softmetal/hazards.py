"""Which passes are ordered: a pass that uses an untracked resource must know that the earlier ones have ended."""

from __future__ import annotations

from typing import Any

from . import constants as k
from .command_buffers import GPUFault
from .control import control


def publish(engine: Any, state: Any, value: int) -> None:
    """Remember with a value of an event which passes have ended."""


def learn(engine: Any, state: Any, value: int) -> None:
    """Know in a queue what an event's value implies."""


class CurrentPass:
    """The execution of a pass."""

    def __init__(self, engine: Any, record: Any) -> None:
        self.engine = engine
        self.record = record
        engine.passes += 1

    def use(self, region: Any, what: str, *, write: bool) -> int:
        """Return the address of a region that the GPU uses."""
        if region.dead:
            control.note_violation("unretained", f"{what}: its buffer of {region.nbytes} bytes was released")
            raise GPUFault(k.MTLCommandBufferErrorInvalidResource)
        return int(region.address)

    def update_fence(self, known: dict[int, int]) -> None:
        """Order later passes that wait for the fence."""

    def wait_for_fence(self, known: dict[int, int]) -> None:
        """Know what the fence's update implies."""

    def barrier(self) -> None:
        """Order the dispatches of a concurrent encoder."""

    def end(self) -> None:
        """Publish the fences."""
