"""Metal source compiled at run time, and dispatches of its kernels."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any
from weakref import WeakSet

from forebay.backends.metal.calls import autorelease_pool, device_error, invoke, metal, new, new_or_error
from forebay.errors import DeviceError

__all__ = ["Argument", "Kernels", "Library", "dispatch", "dispatch_threads"]

Argument = tuple[Any, int] | bytes  # a buffer and an offset, or a constant
_GROUP = 256  # threads
_MOST_THREADS = 1 << 20  # each thread does more beyond that


class Library:
    """A compiled library, whose pipelines are kept."""

    def __init__(self, device: Any, name: str, library: Any) -> None:
        self._device = device
        self._name = name  # of the device
        self._library = library
        self._pipelines: dict[str, Any] = {}

    def names(self) -> list[str]:
        """Return the names of its functions."""
        with autorelease_pool():
            return [str(name) for name in invoke(self._name, self._library.functionNames)]

    def pipeline(self, function: str) -> Any:
        """Return the pipeline of a kernel. Raises DeviceError if there is none of this name."""
        if (found := self._pipelines.get(function)) is None:
            with autorelease_pool():
                found = self._pipelines.setdefault(function, self._new_pipeline(function))
        return found

    def _new_pipeline(self, function: str) -> Any:
        kernel = invoke(self._name, new, self._library.newFunctionWithName_, function)
        if kernel is None:
            message = f"{self._name}: there is no kernel {function!r}; the library has {', '.join(self.names())}"
            raise DeviceError(message, call="newFunctionWithName:", device=self._name)
        make = self._device.newComputePipelineStateWithFunction_error_
        state, error = invoke(self._name, new_or_error, make, kernel)
        if state is None:
            what = f"kernel {function!r} cannot be prepared"
            raise device_error(error, what, "newComputePipelineStateWithFunction:error:", self._name)
        return state


class Kernels:
    """The libraries of one device; forebay's own are compiled when they are first needed."""

    def __init__(self, device: Any, name: str) -> None:
        self.all: WeakSet[Library] = WeakSet()
        self.device = device
        self.name = name
        self._own: dict[tuple[str, ...], Library] = {}
        self._lock = threading.RLock()

    def own(self, file: str, function: str, *, before: str = "", macros: Mapping[str, str] | None = None) -> Any:
        """Return the pipeline of a kernel in `device_code`, whose text follows another file and some macros."""
        key = (file, *(macros or {}).values())
        if (found := self._own.get(key)) is None:
            lines = [f"#define {name} {value}\n" for name, value in (macros or {}).items()]
            source = (_text(before) if before else "") + "".join(lines) + _text(file)
            with self._lock:
                found = self._own[key] = self._own.get(key) or self.compile(source)
        return found.pipeline(function)

    def compile(self, source: str, *, fast_math: bool = False) -> Library:
        """Compile Metal source. Raises DeviceError with the compiler's messages."""
        with autorelease_pool():
            library, error = invoke(self.name, _compiled, self.device, source, fast_math)
        if library is None:
            raise device_error(error, "the kernel source is invalid", "newLibraryWithSource:options:error:", self.name)
        return self.add(library)

    def add(self, library: Any) -> Library:
        """Return the Library of an MTLLibrary."""
        self.all.add(added := Library(self.device, self.name, library))
        return added

    def clear(self) -> None:
        self._own.clear()


def _compiled(device: Any, source: str, fast_math: bool) -> tuple[Any, Any]:
    options = metal().MTLCompileOptions.alloc().init()
    options.setFastMathEnabled_(fast_math)
    return new_or_error(device.newLibraryWithSource_options_error_, source, options)


def dispatch(pipeline: Any, arguments: Sequence[Argument], count: int, encoder: Any) -> None:
    """Encode a kernel for a number of elements, at most a million threads, which repeat it for further elements."""
    threads = min(count, _MOST_THREADS)
    group = min(_GROUP, int(pipeline.maxTotalThreadsPerThreadgroup()))
    dispatch_threads(pipeline, arguments, (threads, 1, 1), (group, 1, 1), encoder)


def dispatch_threads(
    pipeline: Any, arguments: Sequence[Argument], threads: Sequence[int], group: Sequence[int], encoder: Any
) -> None:
    """Encode a kernel for a number of threads along each axis."""
    encoder.setComputePipelineState_(pipeline)
    for at, argument in enumerate(arguments):
        if isinstance(argument, bytes):
            encoder.setBytes_length_atIndex_(argument, len(argument), at)
        else:
            encoder.setBuffer_offset_atIndex_(*argument, at)
    encoder.dispatchThreads_threadsPerThreadgroup_(tuple(threads), tuple(group))


@cache
def _text(file: str) -> str:
    return (resources.files(__package__) / "device_code" / file).read_text()
