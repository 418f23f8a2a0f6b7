"""The primary context of a device, which forebay shares with PyTorch, CuPy and Numba in the same process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from forebay.backends.nvidia.calls import call, driver_api, error_of
from forebay.errors import Forked, WrongState

__all__ = ["PrimaryContext"]

_NO_CONTEXT = (201, 709)  # there is none, or it was destroyed


class PrimaryContext:
    """A retained primary context.

    A call about a stream or an event needs any current context in the calling thread (`invoke_in_any`). A call about
    the device, or about its default stream, needs the device's own (`invoke`, or several inside `current`). The context
    that the program has made current is current again afterwards.
    """

    _generation: ClassVar[int] = 1  # changes when any context is released, which may be current in any thread

    def __init__(self, index: int, name: str) -> None:
        self.index: int = index
        self.name: str = name
        self.device: Any = call("cuDeviceGet", index, device=name)
        self._handle: Any = call("cuDevicePrimaryCtxRetain", self.device, device=name)
        self._process = os.getpid()
        self._released = False
        self._threads = threading.local()  # `checked`: the generation in which `use` found or set a current context
        self._api = driver_api()

    def check_process(self) -> None:
        """Raise Forked in a child of the process that opened the device."""
        if self.forked():
            raise Forked(f"{self.name} was opened before this process was forked: CUDA does not survive a fork")

    def check_usable(self) -> None:
        """Raise Forked or WrongState if the context cannot be used."""
        self.check_process()
        if self._released:
            raise WrongState(f"{self.name} was closed")

    def forked(self) -> bool:
        """Return True if the context belongs to a parent process."""
        return self._process != os.getpid()

    def use(self) -> None:
        """Ensure that the calling thread has a current context that is not released."""
        generation = PrimaryContext._generation
        if getattr(self._threads, "checked", 0) == generation:
            return
        self.check_usable()
        if self._api.cuCtxGetDevice()[0]:  # there is none, or a released one
            call("cuCtxSetCurrent", self._handle, device=self.name)
        self._threads.checked = generation

    def invoke_in_any(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the driver with any current context, and return its result."""
        self.use()
        result = function(*arguments)
        if result[0] and int(result[0]) in _NO_CONTEXT:  # the program has changed it since `use` looked
            self._threads.checked = 0
            self.use()
            result = function(*arguments)
        return result

    def invoke(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the driver with this context as the current one, and return its result."""
        self.check_usable()
        if self._api.cuCtxGetCurrent()[1] == self._handle:
            return function(*arguments)
        with self.current():
            return function(*arguments)

    @contextmanager
    def current(self) -> Iterator[Any]:
        """Make the context current inside the block, which gets the module of the driver's functions."""
        self.check_usable()
        call("cuCtxPushCurrent", self._handle, device=self.name)
        try:
            yield self._api
        finally:
            self._api.cuCtxPopCurrent()

    def release(self) -> None:
        """Release the context. Other libraries may still use it."""
        if self._released or self.forked():
            return
        self._released = True
        code = int(self._api.cuDevicePrimaryCtxRelease(self.device)[0])
        PrimaryContext._generation += 1
        if code not in (0, 4):  # 4: the driver is shutting down
            raise error_of(code, "cuDevicePrimaryCtxRelease", self.name)
