"""The primary context of a device, which forebay shares with PyTorch, CuPy and Numba in the same process."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from forebay.backends.nvidia import _memory, _stream
from forebay.backends.nvidia._stream import Current
from forebay.backends.nvidia.calls import call, call_into, check, driver_api, error_of, known_losses
from forebay.backends.nvidia.kernels.modules import Modules
from forebay.backends.nvidia.peer_access import PeerAccess
from forebay.errors import ForebayError, Forked, WrongState
from forebay.vendor import cuda_errors

__all__ = ["PrimaryContext"]

_VERSION = 12000  # of CUDA: the interfaces of the functions that `_stream` and `_memory` call


class PrimaryContext:
    """A primary context. The context that the program has made current is current again after each call."""

    def __init__(self, index: int, name: str) -> None:
        _load_functions()
        self.index: int = index
        self.name: str = name
        known_losses.discard(name)
        self.device: Any = call("cuDeviceGet", index, device=name)
        self.modules: Modules = Modules(self)
        self.peers: PeerAccess = PeerAccess(self)
        self.process: int = os.getpid()
        self.released: bool = False
        self._api = driver_api()
        self.held: set[Any] = set()  # handles of the graphs; `destroy_discarded` destroys those without an owner
        self.has_discarded: bool = False  # there may be some: Note [Destructors call no driver]
        self.handle: int = 0
        self._retained: list[tuple[Any, ...]] = []  # Note [Calls of the driver are one step]

    def retain(self) -> None:
        """Retain the context. `release` follows, also after an exception."""
        call_into(self._retained, self._api.cuDevicePrimaryCtxRetain, self.device)
        self.handle = int(check(self._retained[0], "cuDevicePrimaryCtxRetain", self.name))

    def check_process(self) -> None:
        """Raise Forked in a child of the process that opened the device."""
        if self.forked():
            raise Forked(f"{self.name} was opened before this process was forked: CUDA does not survive a fork")

    def check_usable(self) -> None:
        """Raise Forked or WrongState if the context cannot be used."""
        self.check_process()
        if self.released:
            raise WrongState(f"{self.name} was closed")

    def forked(self) -> bool:
        """Return True if the context belongs to a parent process."""
        return self.process != os.getpid()

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
        """Release the context if it is retained. Other libraries may still use it."""
        if self.released or self.forked():
            return
        self.modules.unload()
        self.released = True
        if not self._retained or self._retained[0][0]:
            return
        code = int(self._api.cuDevicePrimaryCtxRelease(self.device)[0])
        if code not in (0, cuda_errors.DEINITIALIZED):
            raise error_of(code, "cuDevicePrimaryCtxRelease", self.name)


@cache
def _load_functions() -> None:
    """Find the driver's functions that compiled code calls."""
    for module in (_stream, _memory):
        module.load({name: call("cuGetProcAddress", name.encode(), _VERSION, 0)[0] for name in module.FUNCTIONS})
