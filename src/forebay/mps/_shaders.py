"""Kernels in the Metal Shading Language, compiled at run time. (`torch.mps.compile_shader`, `load_metallib`)"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay._base import config
from forebay.errors import DeviceError, ForebayError, Unsupported
from forebay.mps._kind import MPS, check_available, open_device
from forebay.names.unsupported import unsupported_error
from forebay.runtime.base import observers
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import keep_alive
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.tensor import Tensor
from forebay.spi import Shader, ShaderLibrary, Shaders

__all__ = ["MetalKernel", "MetalLibrary", "compile_shader", "load_metallib"]

_CASTS = {"fp16": "float16", "int32": "int32", "int16": "int16", "int8": "int8", "uint8": "uint8"}
_ArgCasts = str | Mapping[int, str] | None
_Size = int | Sequence[int] | None


class MetalKernel:
    """A kernel of a compiled library.

    Parameters
    ----------
    opened : OpenDevice
        The device.
    shader : Shader
        The kernel of the backend.
    """

    def __init__(self, opened: OpenDevice, shader: Shader) -> None:
        self._opened = opened
        self._shader = shader

    @property
    def max_threads_per_threadgroup(self) -> int:
        """Largest number of threads of one group."""
        return self._shader.max_threads

    @property
    def thread_execution_width(self) -> int:
        """Number of threads that execute together."""
        return self._shader.width

    @property
    def static_thread_group_memory_length(self) -> int:
        """Bytes of threadgroup memory that the kernel declares."""
        return self._shader.memory

    def __call__(
        self, *args: object, threads: _Size = None, group_size: _Size = None, arg_casts: _ArgCasts = None
    ) -> None:
        """Queue the kernel on the current stream.

        Parameters
        ----------
        *args : Tensor, int, float, or list of int or float
            One argument for each buffer of the kernel. An MPS tensor is a buffer, a tensor without dimensions on the
            CPU its value. An int is passed as `long`, a float as `float`, a list as an array.
        threads : int or sequence of int, optional
            Number of threads along one to three axes; by default the number of elements of the first tensor.
        group_size : int or sequence of int, optional
            Number of threads of a group along the same axes; by default the largest possible, along the first axis.
        arg_casts : str or mapping of int to str, optional
            Type of all numbers, or of the arguments at some positions: "fp16", "bf16", "int32", "int16", "int8" or
            "uint8".

        Raises
        ------
        RuntimeError
            If an argument has a wrong type, or the number of threads is unknown.
        ValueError
            If a group has more threads than the kernel permits.
        """
        self._opened.check()
        casts = _casts(arg_casts)
        tensors = [each for each in args if isinstance(each, Tensor) and each.device.kind == MPS.name]
        bound = [self._argument(at, each, casts) for at, each in enumerate(args)]
        if threads is None and tensors:
            threads = tensors[0].numel()
        grid = _axes(threads)
        if grid is None:
            raise ForebayError("Number of threads is undefined or has wrong dimension")
        group = self._group(grid, _axes(group_size) if group_size is not None else None)
        stream = current_stream_for(self._opened)
        if 0 in grid:
            return
        with keep_alive(stream, *(tensor.raw_storage for tensor in tensors)):
            self._shader.launch(stream.queue, bound, _three(grid), _three(group))
        for listener in observers.launch_observers:
            listener.launched(stream, "compile_shader", tuple(tensors), tuple(tensors))

    def _argument(self, at: int, value: object, casts: Mapping[int | None, str]) -> tuple[int, int] | bytes:
        if isinstance(value, Tensor):
            if value.device.kind == MPS.name:
                if value.device != self._opened.device:
                    raise ForebayError(f"argument {at} is on {value.device}, and the kernel on {self._opened.device}")
                return value.raw_address(), value.nbytes
            if value.dim():
                raise ForebayError("Passed CPU tensor to MPS op")  # PyTorch's words
            number = value.numpy()
            return (number.astype(np.float32) if number.dtype == np.float64 else number).tobytes()
        return _constant(value, casts.get(at, casts.get(None, "")))

    def _group(self, grid: Sequence[int], group: Sequence[int] | None) -> Sequence[int]:
        most = self._shader.max_threads
        if group is None:
            return [most, *[1] * (len(grid) - 1)]
        if len(group) != len(grid):
            raise ForebayError("size and group_size must have same number of dimensions")
        if math.prod(group) > most or min(group) < 1:
            raise ValueError(f"a group of {' * '.join(map(str, group))} threads is not from 1 to {most} threads")
        return group


class MetalLibrary:
    """Kernels that were compiled together: each is an attribute, and `dir` lists them.

    Parameters
    ----------
    opened : OpenDevice
        The device.
    library : ShaderLibrary
        The library of the backend.
    """

    def __init__(self, opened: OpenDevice, library: ShaderLibrary) -> None:
        self._opened = opened
        self._library = library

    def __getattr__(self, name: str) -> MetalKernel:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return MetalKernel(self._opened, self._library.shader(name))

    def __dir__(self) -> list[str]:
        return self._library.names()


def compile_shader(source: str) -> MetalLibrary:
    """Compile kernels in the Metal Shading Language.

    As `torch.mps.compile_shader`. Opens the device.

    Parameters
    ----------
    source : str
        Text of the program.

    Returns
    -------
    MetalLibrary
        Its kernels, as attributes that are called with tensors and numbers.

    Raises
    ------
    SyntaxError
        If the program is invalid; the text has the compiler's messages.
    Unsupported
        If the device is emulated.
    ForebayError
        If there is no MPS device.
    TypeError
        If `source` is not a str.
    """
    check_available()
    if not isinstance(source, str):
        raise TypeError(f"source must be a str, not {type(source).__name__}")
    opened, port = _shaders("forebay.mps.compile_shader")
    try:
        return MetalLibrary(opened, port.compile_shader(source, fast_math=config.MPS_FAST_MATH.value()))
    except DeviceError as error:
        if not error.code:  # not the compiler's
            raise
        raise SyntaxError(str(error)) from error


def load_metallib(source: Any) -> MetalLibrary:
    """Load kernels that were compiled before.

    As `torch.mps.load_metallib`. Opens the device.

    Parameters
    ----------
    source : bytes or bytearray or str or os.PathLike
        The content of a .metallib file, or its path.

    Returns
    -------
    MetalLibrary
        Its kernels, as of `compile_shader`.

    Raises
    ------
    DeviceError
        If Metal refuses the library.
    Unsupported
        If the device is emulated.
    ForebayError
        If there is no MPS device.
    TypeError
        If `source` is neither bytes nor a path.
    """
    if not isinstance(source, (bytes, bytearray, str, os.PathLike)):
        raise TypeError(f"expected bytes or path, got {type(source).__name__}")
    check_available()
    opened, port = _shaders("forebay.mps.load_metallib")
    content = bytes(source) if isinstance(source, (bytes, bytearray)) else Path(source).read_bytes()
    return MetalLibrary(opened, port.load_shader_library(content))


def _shaders(name: str) -> tuple[OpenDevice, Shaders]:
    opened = open_device(None, "getDefaultStream")
    if not isinstance(opened.port, Shaders):
        raise unsupported_error(name) from Unsupported(f"{opened.device} compiles no kernels", ability="Shaders")
    return opened, opened.port


def _axes(size: _Size) -> list[int] | None:
    """Return one to three numbers of threads, or None if there are none or more."""
    if size is None:
        return None
    axes = [size] if isinstance(size, int) else [int(each) for each in size]
    return axes if 1 <= len(axes) <= 3 else None


def _three(axes: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = [*axes, 1, 1][:3]
    return first, second, third


def _casts(arg_casts: _ArgCasts) -> Mapping[int | None, str]:
    if arg_casts is None:
        return {}
    if isinstance(arg_casts, str):
        return {None: arg_casts}
    if isinstance(arg_casts, Mapping):
        return {int(at): str(cast) for at, cast in arg_casts.items()}
    raise ForebayError(f"arg_casts must be a str or a mapping, not {type(arg_casts).__name__}")


def _constant(value: object, cast: str) -> bytes:
    """Return the bytes of a number or of a list of numbers."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    if not numbers:
        raise ForebayError("Empty list/tuple can not be an argument to metal kernel")  # PyTorch's words
    if isinstance(numbers[0], int):
        array = np.array(numbers, np.int64)
    elif isinstance(numbers[0], float):
        array = np.array(numbers, np.float32)
    else:
        raise ForebayError(f"Unsupported argument type {type(numbers[0]).__name__}")
    if not cast:
        return array.tobytes()
    if cast == "bf16":
        raw = array.astype(np.float32).view(np.uint32)
        return ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    if cast not in _CASTS:
        raise ForebayError(f"Unsupported cast instruction {cast}")  # PyTorch's words
    with np.errstate(all="ignore"):
        return array.astype(_CASTS[cast]).tobytes()
