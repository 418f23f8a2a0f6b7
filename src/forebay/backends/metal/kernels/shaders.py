"""Metal shaders of a program: `compile_shader` and `load_metallib` for `forebay.mps`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import finalize

from forebay.backends.metal.calls import autorelease_pool, device_error, foundation, invoke, new_or_error
from forebay.backends.metal.commands import COMPUTE
from forebay.backends.metal.kernels.library import Argument, Kernels, Library, dispatch_threads
from forebay.backends.metal.transfers import region_of
from forebay.errors import DeviceError
from forebay.spi import Queue

__all__ = ["Shader", "ShaderLibrary", "compile_shader", "load_library"]

_MOST_BYTES = 4096  # of a constant argument that is a part of the command


class Shader:
    """A kernel of a program. Implements `spi.Shader`."""

    def __init__(self, device: str, library: Library, name: str) -> None:
        self._device = device
        self._library = library  # keeps the pipeline
        pipeline = self._pipeline = library.pipeline(name)
        with autorelease_pool():
            self.max_threads: int = int(invoke(device, pipeline.maxTotalThreadsPerThreadgroup))
            self.width: int = int(invoke(device, pipeline.threadExecutionWidth))

    @property
    def memory(self) -> int:
        with autorelease_pool():
            return int(invoke(self._device, self._pipeline.staticThreadgroupMemoryLength))

    def launch(
        self, queue: Queue, arguments: Sequence[tuple[int, int] | bytes], threads: Sequence[int], group: Sequence[int]
    ) -> None:
        """Queue the kernel; see `spi.Shader.launch`."""
        from forebay.backends.metal.queue import MetalQueue

        if not isinstance(queue, MetalQueue):
            raise TypeError(f"a Metal kernel is launched on a Metal queue, not on a {type(queue).__name__}")
        queue.check_usable()
        if queue.capture is not None:
            raise queue.capture.forbidden(queue, "launch")
        bound: list[Argument] = [
            _constant(argument) if isinstance(argument, bytes) else _buffer(queue, *argument) for argument in arguments
        ]
        queue.add_piece(COMPUTE, partial(dispatch_threads, self._pipeline, bound, threads, group))


class ShaderLibrary:
    """A compiled program. Implements `spi.ShaderLibrary`."""

    def __init__(self, device: str, library: Library) -> None:
        self._device = device
        self._library = library
        self._shaders: dict[str, Shader] = {}

    def names(self) -> list[str]:
        return self._library.names()

    def shader(self, name: str) -> Shader:
        if (found := self._shaders.get(name)) is None:
            found = self._shaders.setdefault(name, Shader(self._device, self._library, name))
        return found


def compile_shader(kernels: Kernels, source: str, *, fast_math: bool) -> ShaderLibrary:
    """Compile Metal source. Raises DeviceError with the compiler's messages."""
    return ShaderLibrary(kernels.name, kernels.compile(source, fast_math=fast_math))


def load_library(kernels: Kernels, content: bytes) -> ShaderLibrary:
    """Load a compiled library (.metallib). Raises DeviceError if Metal refuses it.

    From a temporary file: PyObjC makes the argument of newLibraryWithData:error: in another package. It exists as long
    as the library, since Metal does not document when it reads the kernels.
    """
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".metallib"))
        file.write(content)
        file.flush()
        with autorelease_pool():
            library, error = invoke(kernels.name, _loaded, kernels.device, file.name)
        if library is None:
            raise device_error(error, "the library cannot be loaded", "newLibraryWithURL:error:", kernels.name)
        loaded = kernels.add(library)
        finalize(loaded, stack.pop_all().close)
    return ShaderLibrary(kernels.name, loaded)


def _loaded(device: Any, path: str) -> tuple[Any, Any]:
    return new_or_error(device.newLibraryWithURL_error_, foundation().NSURL.fileURLWithPath_(path))


def _constant(argument: bytes) -> bytes:
    if len(argument) > _MOST_BYTES:
        raise ValueError(f"a constant argument has at most {_MOST_BYTES} bytes, not {len(argument)}: pass a tensor")
    return argument


def _buffer(queue: Any, address: int, nbytes: int) -> tuple[Any, int]:
    region = region_of(queue, address, max(nbytes, 1), "launch")
    if region is None:
        message = f"{queue.owner.name}: {address:#x} is not the address of memory of the device"
        raise DeviceError(message, call="launch", device=queue.owner.name)
    return region.buffer, address - region.start
