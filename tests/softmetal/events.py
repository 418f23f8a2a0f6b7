"""Events that queues signal and wait for, listeners, and fences between passes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from .clocks import implied, observe
from .control import WAIT_LIMIT, control
from .objects import Creatable, Labeled, autorelease_pool, instance, unsigned, wait_uninterrupted
from .rules import MetalRuleViolation


class Dispatcher:
    """A thread that calls blocks one after another, each inside an autorelease pool."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def post(self, block: Callable[[], None]) -> None:
        control.began()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self._work,), name=self._name, daemon=True)
            self._thread.start()
        self._work.put(block)

    def close(self) -> None:
        self._work.put(None)

    @staticmethod
    def _run(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (block := work.get()) is not None:
            with autorelease_pool():
                call_block(block)
            control.ended()
            block = None


def call_block(block: Callable[..., None], *arguments: Any) -> None:
    """Call a block of the program, and complain if it raises."""
    try:
        block(*arguments)
    except MetalRuleViolation:
        pass  # it is recorded
    except Exception as error:  # noqa: BLE001 - it is reported as a rule that was broken
        control.note_violation("block", f"a handler raised {type(error).__name__}: {error}")


class EventState:
    """The value of an event, which outlives its object while commands refer to it."""

    def __init__(self) -> None:
        self.value = 0
        self.changed = threading.Condition()
        self.listeners: list[tuple[int, Callable[[], None]]] = []
        self.signals: list[tuple[int, dict[int, int]]] = []  # values, and the passes that had ended then

    def reach(self, value: int) -> None:
        with self.changed:
            self.value = max(self.value, value)
            due = [call for at, call in self.listeners if at <= self.value]
            self.listeners = [each for each in self.listeners if each[0] > self.value]
            self.changed.notify_all()
        for call in due:
            call()


class MTLEvent(Labeled):
    """An event of one device."""

    __slots__ = ("_device", "_state")

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device
        self._state = EventState()

    def device(self) -> Any:
        return self._device


class MTLSharedEvent(MTLEvent):
    """An event that the CPU and other devices can use, too."""

    __slots__ = ()

    def signaledValue(self) -> int:
        value = self._state.value
        observe(implied(self._state, value))
        return value

    def setSignaledValue_(self, value: int) -> None:
        value = unsigned(value, "value")
        if value < self._state.value:
            control.violated("event-grows", f"the CPU signals {value}, but the value is {self._state.value}")
        self._state.reach(value)

    def notifyListener_atValue_block_(self, listener: Any, value: int, block: Callable[[Any, int], None]) -> None:
        instance(listener, MTLSharedEventListener, "listener")
        value, state = unsigned(value, "value"), self._state

        def call() -> None:
            listener._dispatcher.post(notify)

        def notify() -> None:
            observe(implied(state, value))
            block(self, state.value)

        with state.changed:
            reached = state.value >= value
            if not reached:
                state.listeners.append((value, call))
        if reached:
            call()

    def waitUntilSignaledValue_timeoutMS_(self, value: int, milliseconds: int) -> bool:
        value = unsigned(value, "value")
        limit = min(unsigned(milliseconds, "timeoutMS") / 1000, WAIT_LIMIT)
        with self._state.changed:
            reached = wait_uninterrupted(self._state.changed, lambda: self._state.value >= value, limit)
        if reached:
            observe(implied(self._state, value))
        return reached


class MTLSharedEventListener(Creatable):
    """A thread on which notifications of shared events are called."""

    __slots__ = ("_dispatcher",)

    def __init__(self) -> None:
        super().__init__()
        self._dispatcher = Dispatcher("MTLSharedEventListener")

    def _die(self) -> None:
        self._dispatcher.close()

    def initWithDispatchQueue_(self, dispatch_queue: Any) -> MTLSharedEventListener:
        if dispatch_queue is not None:
            control.refuse("MTLSharedEventListener initWithDispatchQueue_ with a queue")
        return self


class FenceState:
    """The implications of a fence's updates."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}


class MTLFence(Labeled):
    """An order between passes that use untracked resources."""

    __slots__ = ("_device", "_state")

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device
        self._state = FenceState()

    def device(self) -> Any:
        return self._device
