"""Modules of a context: compiled programs that the driver has loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

from forebay.backends.nvidia._memory import obtain
from forebay.backends.nvidia.calls import Context, call, check, driver_api
from forebay.backends.nvidia.kernels.compiler import Image, Program, compile_program
from forebay.errors import DeviceError

__all__ = ["Function", "Modules"]


class Function:
    """A kernel of a loaded module."""

    __slots__ = ("context", "handle", "name", "shared")

    def __init__(self, context: Context, name: str, handle: int) -> None:
        self.context: Context = context
        self.name: str = name
        self.handle: int = handle
        self.shared: int = 0  # bytes of dynamic shared memory that were requested from the driver


class Modules:
    """The loaded modules of a context, by program. They are unloaded when the context is released."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._loaded: dict[Program, Any] = {}
        self._symbols: dict[Program, dict[str, str]] = {}
        self._own: dict[Hashable, Function] = {}

    def function(self, program: Program, name: str) -> Function:
        """Return a kernel of a program, which is compiled and loaded if it was not before.

        Its name is that of an ``extern "C"`` function, or one of the program's templates.
        """
        context = self._context
        with self._lock:
            if program not in self._loaded:
                self._load(program, compile_program(program, self._capability()))
            symbol = self._symbols[program].get(name, name)
            found = context.invoke(driver_api().cuModuleGetFunction, self._loaded[program], symbol.encode())
            return Function(context, name, int(check(found, "cuModuleGetFunction", context.name)))

    def own_function(self, key: Hashable, name: str, make: Callable[[], Program]) -> Function:
        """Return the kernel of one of forebay's programs. `make` returns the program if the key is new."""
        found = self._own.get(key)
        if found is None:
            found = self._own[key] = self.function(make(), name)
        return found

    def unload(self) -> None:
        """Unload all modules; their kernels must have completed. Errors are ignored: a lost device has no modules."""
        with self._lock:
            self._own.clear()
            while self._loaded:
                with suppress(DeviceError):
                    self._context.invoke(driver_api().cuModuleUnload, self._loaded.popitem()[1])

    def _load(self, program: Program, image: Image) -> None:
        made: list[tuple[str, Any]] = []
        context, api = self._context, driver_api()
        try:
            result = context.invoke(obtain, made, "cuModuleUnload", api.cuModuleLoadData, image.code)
            loaded = check(result, "cuModuleLoadData", context.name)
            self._symbols[program] = dict(image.symbols)
            self._loaded[program] = loaded
        except BaseException:  # also of a signal handler
            for function, module in made:
                self._loaded.pop(program, None)
                context.invoke(getattr(api, function), module)
            raise

    def _capability(self) -> tuple[int, int]:
        attributes = driver_api().CUdevice_attribute
        major, minor = (
            call(
                "cuDeviceGetAttribute",
                getattr(attributes, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"),
                self._context.device,
                device=self._context.name,
            )
            for part in ("MAJOR", "MINOR")
        )
        return int(major), int(minor)
