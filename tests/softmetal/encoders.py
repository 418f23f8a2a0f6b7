"""The common part of all encoders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .control import control
from .events import MTLFence
from .objects import Labeled, instance
from .passes import PassRecord
from .resources import MTLBuffer


class MTLCommandEncoder(Labeled):
    """An encoder of one pass of a command buffer."""

    __slots__ = ("_buffer", "_busy", "_open", "_pass")
    _kind = ""

    def __init__(self, buffer: Any, *, concurrent: bool = False) -> None:
        super().__init__()
        self._buffer = buffer
        self._pass = PassRecord(self._kind, concurrent=concurrent)
        self._open = True
        self._busy = threading.RLock()
        buffer._encoder = self._pass
        buffer._record.steps.append(self._pass)

    def _die(self) -> None:
        if self._open:
            control.note_violation("lost-encoder", f"a {self._kind} encoder was released without endEncoding()")
            self._buffer._encoder = None

    def device(self) -> Any:
        return self._buffer._queue._device

    def endEncoding(self) -> None:
        self._check()
        self._open = False
        self._pass.label = self._label
        self._buffer._encoder = None

    def updateFence_(self, fence: Any) -> None:
        self._uses(instance(fence, MTLFence, "fence"))
        self._pass.fences_updated.add(id(fence))
        state = fence._state
        self._add(lambda current: current.update_fence(state))

    def waitForFence_(self, fence: Any) -> None:
        self._uses(instance(fence, MTLFence, "fence"))
        if id(fence) in self._pass.fences_updated:
            control.violated("fence", "a pass waits for a fence after it has updated it")
        state = fence._state
        self._add(lambda current: current.wait_for_fence(state))

    def pushDebugGroup_(self, name: str) -> None:
        """Metal's tools show the name."""

    def popDebugGroup(self) -> None:
        """End a group."""

    def insertDebugSignpost_(self, name: str) -> None:
        """Metal's tools show the name."""

    def _check(self) -> None:
        if not self._open:
            control.violated("ended", f"a command for a {self._kind} encoder that has ended")

    def _add(self, operation: Callable[[Any], None]) -> None:
        self._check()
        self._pass.operations.append(operation)

    def _uses(self, resource: Any) -> Any:
        """Check that a resource can be used here, and retain it."""
        self._check()
        if resource._device is not self._buffer._queue._device:
            control.violated("device", f"a {resource._protocol} belongs to another device than the encoder")
        self._buffer._retain(resource)
        return resource

    def _buffer_argument(self, buffer: Any, name: str) -> MTLBuffer:
        return self._uses(instance(buffer, MTLBuffer, name))
