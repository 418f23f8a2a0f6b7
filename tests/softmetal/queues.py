"""Command queues: one thread each, which executes committed command buffers in order."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from .command_buffers import CommandRecord, MTLCommandBuffer, MTLCommandBufferDescriptor
from .control import WAIT_LIMIT, control
from .objects import Labeled, autoreleased, instance, wait_uninterrupted


class Engine:
    """The part of a queue that its thread knows, which does not keep the queue alive."""

    _count = 0

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.changed = threading.Condition(threading.RLock())
        self.order: deque[CommandRecord] = deque()  # enqueued and not completed
        self.uncompleted = 0  # command buffers that exist and have not completed
        self.committed = 0
        self.closed = False
        self.passes = 0  # that have been executed, see hazards
        self.known: dict[int, int] = {}
        Engine._count += 1
        self.number = Engine._count
        self._thread: threading.Thread | None = None

    def commit(self, record: CommandRecord) -> None:
        control.began()
        with self.changed:
            if record not in self.order:
                self.order.append(record)
            record.committed = True  # from now on the thread may execute it
            self.committed += 1
            if self._thread is None:
                name = f"MTLCommandQueue {self.number}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self.changed.notify_all()

    def enqueue(self, record: CommandRecord) -> None:
        with self.changed:
            if record not in self.order:
                self.order.append(record)

    def abandon(self, record: CommandRecord) -> None:
        """Remove a command buffer that was released without a commit."""
        with self.changed:
            self.uncompleted -= 1
            if record in self.order:
                self.order.remove(record)
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(self._has_work)
                if not (self.order and self.order[0].committed):
                    return
                record = self.order[0]
            record.execute(self)
            with self.changed:
                self.order.remove(record)
                self.uncompleted -= 1
                self.committed -= 1
                self.changed.notify_all()
            record.finish()
            control.ended()
            del record

    def _has_work(self) -> bool:
        return bool(self.order and self.order[0].committed) or (self.closed and not self.committed)


class MTLCommandQueue(Labeled):
    """A queue of command buffers."""

    __slots__ = ("_device", "_engine")

    def __init__(self, device: Any, limit: int) -> None:
        super().__init__()
        self._device = device
        self._engine = Engine(limit)

    def _die(self) -> None:
        self._engine.close()

    def device(self) -> Any:
        return self._device

    def commandBuffer(self) -> Any:
        return self._new("commandBuffer", retained=True)

    def commandBufferWithUnretainedReferences(self) -> Any:
        return self._new("commandBufferWithUnretainedReferences", retained=False)

    def commandBufferWithDescriptor_(self, descriptor: MTLCommandBufferDescriptor) -> Any:
        values = instance(descriptor, MTLCommandBufferDescriptor, "descriptor")._values
        options = values.get("errorOptions", 0)
        retained = bool(values.get("retainedReferences", True))
        return self._new("commandBufferWithDescriptor_", retained=retained, error_options=options)

    def _new(self, selector: str, *, retained: bool, error_options: int = 0) -> Any:
        engine = self._engine
        with engine.changed:
            if engine.uncompleted >= engine.limit:
                if not engine.committed or not engine.order[0].committed:
                    detail = f"{engine.uncompleted} command buffers exist, and none of them can complete"
                    control.violated("queue-full", detail)
                free = wait_uninterrupted(engine.changed, lambda: engine.uncompleted < engine.limit, WAIT_LIMIT)
                if not free:
                    control.violated("queue-full", f"no command buffer completed in {WAIT_LIMIT} s")
            engine.uncompleted += 1
        return autoreleased(MTLCommandBuffer(self, retained=retained, error_options=error_options), selector)
