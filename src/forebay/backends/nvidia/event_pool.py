"""Pool of the driver's events, which are reused until the pool is destroyed."""

from __future__ import annotations

from typing import Any

from forebay.backends.nvidia.calls import check, driver_api
from forebay.backends.nvidia.context import PrimaryContext

__all__ = ["EventPool"]


class EventPool:
    """The events of one stream, with or without times."""

    def __init__(self, context: PrimaryContext, *, timing: bool) -> None:
        self._context = context
        self._api = driver_api()
        self._flags = 0 if timing else int(self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self.destroyed: bool = False
        self._free: list[Any] = []
        self._all: list[Any] = []

    def take(self) -> Any:
        """Return an event that is not in use."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        event = check(self._context.invoke(self._api.cuEventCreate, self._flags), "cuEventCreate", self._context.name)
        self._all.append(event)
        return event

    def put(self, event: Any) -> None:
        """Accept an event for reuse. Never raises, and may be called by a destructor."""
        self._free.append(event)

    def destroy(self) -> None:
        """Destroy all events. Errors are ignored: the device may be lost."""
        self.destroyed = True
        self._free.clear()
        while self._all:
            self._api.cuEventDestroy(self._all.pop())
