"""The primary context of a device, which forebay shares with PyTorch, CuPy and Numba in the same process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakSet

from forebay.backends.common.cuda_errors import DEINITIALIZED
from forebay.backends.nvidia._stream import FUNCTIONS, Current, load
from forebay.backends.nvidia.calls import call, driver_api, error_of, known_losses
from forebay.backends.nvidia.kernels.modules import Modules
from forebay.backends.nvidia.peer_access import PeerAccess
from forebay.errors import ForebayError, Forked, WrongState

__all__ = ["PrimaryContext"]

_VERSION = 12000  # of CUDA: the interfaces of the functions that `_stream` calls


class PrimaryContext:
    """A retained primary context. The context that the program has made current is current again after each call."""

    def __init__(self, index: int, name: str) -> None:
        _load_functions()
        self.index: int = index
        self.name: str = name
        known_losses.discard(name)
        self.device: Any = call("cuDeviceGet", index, device=name)
        self._handle: Any = call("cuDevicePrimaryCtxRetain", self.device, device=name)
        self.handle: int = int(self._handle)
        self.modules: Modules = Modules(self)
        self.peers: PeerAccess = PeerAccess(self)
        self._process = os.getpid()
        self._released = False
        self._api = driver_api()
        self.graphs: WeakSet[Any] = WeakSet()  # `GraphExecutables`
        self.discarded: deque[Any] = deque()  # handles of deleted ones, which `destroy_discarded` destroys

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

    def invoke(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the driver inside `current`, and return its result."""
        with self.current():
            return function(*arguments)

    def current(self) -> Current:
        """Make the context current inside a `with` block, which gets the module of the driver's functions.

        Calls that captures cannot observe are permitted inside the block; see `Current`.
        """
        return Current(self, self._api)

    def try_to_invoke(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver by name, to clean up. Errors are ignored: the device may be lost."""
        with suppress(ForebayError):
            self.invoke(getattr(self._api, function), *arguments)

    def release(self) -> None:
        """Release the context. Other libraries may still use it."""
        if self._released or self.forked():
            return
        self.modules.unload()
        self._released = True
        code = int(self._api.cuDevicePrimaryCtxRelease(self.device)[0])
        if code not in (0, DEINITIALIZED):
            raise error_of(code, "cuDevicePrimaryCtxRelease", self.name)


@cache
def _load_functions() -> None:
    """Find the driver's functions that `_stream` calls."""
    load({name: call("cuGetProcAddress", name.encode(), _VERSION, 0)[0] for name in FUNCTIONS})
