"""Host functions: Python callables and native functions that a stream runs in order, by `cuLaunchHostFunc`."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from forebay.backends.nvidia.calls import check, driver_api
from forebay.backends.nvidia.context import PrimaryContext

__all__ = ["HostFunctions"]

_Native = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_pending: dict[int, tuple[Callable[[], object], deque[BaseException | int]]] = {}
_keys = itertools.count(1)


def _run(key: int) -> None:
    """Run a function, on a thread of the driver. The driver forbids that it calls the driver."""
    function, failures = _pending.pop(key)
    try:
        code = function()
        if function.__class__ is _NativeCall and code:
            failures.append(int(code))  # type: ignore[call-overload]  # a native function returns an int
    except BaseException as error:  # noqa: BLE001 -- reported by the next wait
        error.__traceback__ = error.__context__ = None
        failures.append(error)


_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_run)
_RUN: Final = ctypes.cast(_callback, ctypes.c_void_p).value


class _NativeCall:
    """A call of a native function with its argument."""

    __slots__ = ("argument", "function")

    def __init__(self, function: int, argument: int) -> None:
        self.function, self.argument = _Native(function), argument

    def __call__(self) -> int:
        return int(self.function(self.argument))


class HostFunctions:
    """The host functions of one stream, and their failures."""

    def __init__(self, context: PrimaryContext, stream: int) -> None:
        self._stream = stream
        self._name = context.name
        self._invoke = context.invoke_in_any if stream else context.invoke
        self._api = driver_api()
        self._failures = deque[BaseException | int]()

    def call(self, function: Callable[[], object]) -> None:
        """Queue a Python function."""
        key = next(_keys)
        _pending[key] = (function, self._failures)
        launched: Any = None
        try:
            launched = self._invoke(self._api.cuLaunchHostFunc, self._stream, _RUN, key)
            check(launched, "cuLaunchHostFunc", self._name)
        finally:
            if launched is None or launched[0]:
                _pending.pop(key, None)

    def call_native(self, function: int, argument: int) -> None:
        """Queue a native function."""
        self.call(_NativeCall(function, argument))

    def take_failure(self) -> BaseException | int | None:
        """Return the first failure since the last call, and forget the others."""
        failure = self._failures.popleft() if self._failures else None
        self._failures.clear()
        return failure
