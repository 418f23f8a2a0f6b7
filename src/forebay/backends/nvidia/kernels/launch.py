"""Launches of kernels, with arguments that are packed by the types that the program declares."""

from __future__ import annotations

import ctypes
import operator
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from forebay.backends.nvidia.calls import Context, check, driver_api
from forebay.backends.nvidia.kernels.compiler import Program
from forebay.backends.nvidia.kernels.modules import Function, Modules
from forebay.errors import DeviceError, WrongState
from forebay.vendor import cuda_errors

__all__ = ["Kernel", "KernelQueue", "KernelStream", "launch", "launch_packed", "load_kernel"]

_POINTER = "pointer"
_BOUNDS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
_KINDS = "biufcV"  # of dtypes: bool, integers, floats, complex numbers, structures
_SHARED = 48 << 10  # bytes of dynamic shared memory that each kernel may have
_INT_MAX = 2**31 - 1
_setting_limit = threading.RLock()  # of shared memory; reentrant: a destructor may run inside
_NUMBERS: tuple[type, ...] = (int, float, np.integer, np.floating)
_ACCEPTED: dict[str, tuple[type, ...]] = {  # types of arguments, by kind of dtype
    "b": (bool, np.bool_),
    "i": (int, np.integer),
    "u": (int, np.integer),
    "f": _NUMBERS,
    "c": (*_NUMBERS, complex, np.complexfloating),
}
_FLOATS = {"f": struct.Struct("=f"), "d": struct.Struct("=d")}


class _ModuleContext(Context, Protocol):
    """A primary context with its modules."""

    modules: Modules


class KernelQueue(Protocol):
    """The part of a queue that launches use."""

    @property
    def context(self) -> Any: ...  # a _ModuleContext
    @property
    def name(self) -> str: ...
    @property
    def handle(self) -> int: ...
    def check_usable(self) -> None: ...
    def memory_device(self, address: int) -> int: ...
    def launch_kernel(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        arguments: tuple[bytes, ...],
    ) -> None: ...


class Kernel:
    """A kernel of a program, loaded for one device, and the types of its parameters."""

    __slots__ = ("_function", "parameters")

    def __init__(self, function: Function, parameters: tuple[np.dtype[Any] | None, ...]) -> None:
        self._function = function
        self.parameters: tuple[np.dtype[Any] | None, ...] = parameters  # None for a pointer

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return self._function.name

    def pack(self, arguments: Sequence[object]) -> list[bytes]:
        """Return the bytes of each argument. Raises TypeError or ValueError if one does not fit its parameter."""
        if len(arguments) != len(self.parameters):
            raise TypeError(f"kernel {self.name} has {len(self.parameters)} parameters, not {len(arguments)}")
        packed = []
        for number, (argument, dtype) in enumerate(zip(arguments, self.parameters, strict=True)):
            try:
                packed.append(_pack_pointer(argument) if dtype is None else _pack(argument, dtype))
            except (TypeError, ValueError, OverflowError) as error:
                wanted = _POINTER if dtype is None else str(dtype)
                text = f"argument {number} of kernel {self.name}, of type {wanted}: {error}"
                raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from None
        return packed


class KernelStream(Protocol):
    """A stream, which has a queue."""

    @property
    def queue(self) -> Any: ...  # a KernelQueue


def load_kernel(
    stream: KernelStream | KernelQueue, program: Program, name: str, parameters: Sequence[object]
) -> Kernel:
    """Compile a program, unless that was done before, and return a kernel of it for the queue's device.

    Parameters
    ----------
    stream : Stream or CudaQueue
        A stream of the device, or its queue.
    program : Program
        The program.
    name : str
        Name of the kernel: that of an ``extern "C"`` function, or one of the program's templates.
    parameters : sequence of object
        Type of each parameter: "pointer", or what `numpy.dtype` accepts, also for structures. Only numbers in the
        machine's byte order, and structures of them.

    Raises
    ------
    TypeError
        If the types do not agree with the compiled kernel.
    """
    queue: KernelQueue = _queue_of(stream)
    queue.check_usable()
    types = tuple(None if each == _POINTER else _checked_type(each) for each in parameters)
    context = queue.context
    function = context.modules.function(program, name)
    sizes = _parameter_sizes(context, function)
    declared = [8 if each is None else each.itemsize for each in types]
    if sizes is not None and sizes != declared:
        raise TypeError(f"kernel {name} has parameters of {sizes} bytes; the declared types have {declared}")
    return Kernel(function, types)


def launch(
    kernel: Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[object],
    stream: KernelStream | KernelQueue,
    shared: int = 0,
) -> None:
    """Queue a kernel.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    grid : int or sequence of int
        Number of blocks along one to three axes.
    block : int or sequence of int
        Number of threads of a block along one to three axes.
    args : sequence of object
        One argument for each parameter: ints, floats, bools, complex numbers, scalars of NumPy and ctypes; bytes for
        structures; for a pointer an address, an instance of `ctypes.c_void_p`, a tensor, or an
        object with `__cuda_array_interface__`.
    stream : Stream or CudaQueue
        A stream of the kernel's device, or its queue.
    shared : int, default 0
        Bytes of dynamic shared memory. Above 48 KiB, the limit is that of the device.

    Raises
    ------
    TypeError
        If the number or the type of an argument is wrong.
    ValueError
        If a value does not fit its parameter, or a size is out of range.
    """
    function = kernel._function  # noqa: SLF001 -- a part of this module
    sizes = [
        _size(value, what, bounds)
        for value, what, bounds in zip((grid, block), ("grid", "block"), _BOUNDS, strict=True)
    ]
    queue, shared = _queue_of(stream), operator.index(shared)
    _check_shared(function, shared)
    launch_packed(queue, function, sizes[0], sizes[1], kernel.pack(args), shared)


def launch_packed(
    queue: KernelQueue,
    function: Function,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: Sequence[bytes],
    shared: int = 0,
) -> None:
    """Queue a kernel with packed arguments, which the driver copies before it returns."""
    if function.context is not queue.context:
        raise WrongState(f"kernel {function.name} was loaded for {function.context.name}, not for {queue.name}")
    queue.launch_kernel(function.handle, grid, block, shared, tuple(arguments))


def _queue_of(stream: KernelStream | KernelQueue) -> KernelQueue:
    queue: KernelQueue = stream.queue if hasattr(stream, "queue") else stream
    return queue


def _checked_type(parameter: object) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(parameter)  # type: ignore[call-overload]  # raises TypeError
    if dtype.kind not in _KINDS or dtype.hasobject:
        raise TypeError(f"a kernel cannot have a parameter of type {dtype}, which is no number")
    if not dtype.isnative:
        raise TypeError(f"a kernel cannot have a parameter of type {dtype}, which is not in the machine's byte order")
    return dtype


def _check_shared(function: Function, shared: int) -> None:
    """Let a kernel have an amount of dynamic shared memory. Raises ValueError if it is not possible."""
    if 0 <= shared <= max(_SHARED, function.shared):
        return
    context = function.context
    if shared > 0:
        attribute = driver_api().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with _setting_limit:
            if shared <= function.shared:  # set by another thread
                return
            result = context.invoke(driver_api().cuFuncSetAttribute, function.handle, attribute, min(shared, _INT_MAX))
            if int(result[0]) != cuda_errors.INVALID_VALUE:
                check(result, "cuFuncSetAttribute", context.name)
                function.shared = shared
                return
    most = _most_shared(function)
    raise ValueError(f"kernel {function.name} can have 0 to {most} bytes of dynamic shared memory, not {shared}")


def _most_shared(function: Function) -> int:
    """Return the bytes of a device's shared memory that remain beside the kernel's own."""
    api, context = driver_api(), function.context
    most, own = api.CUdevice_attribute, api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    attribute = most.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    available = check(context.invoke(api.cuDeviceGetAttribute, attribute, context.device), "cuDeviceGetAttribute")
    used = check(context.invoke(api.cuFuncGetAttribute, own, function.handle), "cuFuncGetAttribute")
    return int(available) - int(used)


def _size(value: int | Sequence[int], what: str, bounds: tuple[int, ...]) -> tuple[int, int, int]:
    if value.__class__ is int and 0 < value <= bounds[0]:
        return value, 1, 1
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    found = [operator.index(each) for each in sizes] + [1] * (3 - len(sizes))
    if not 1 <= len(sizes) <= 3 or not all(0 < each <= most for each, most in zip(found, bounds, strict=False)):
        raise ValueError(f"{what} must have one to three sizes of 1 to {bounds}, not {value}")
    x, y, z = found
    if what == "block" and x * y * z > 1024:
        raise ValueError(f"a block has at most 1024 threads, not {x * y * z}")
    return x, y, z


def _pack_pointer(argument: object) -> bytes:
    if hasattr(argument, "data_ptr"):
        argument = argument.data_ptr()
    elif (interface := getattr(argument, "__cuda_array_interface__", None)) is not None:
        argument = interface["data"][0]
    elif isinstance(argument, ctypes.c_void_p):
        argument = argument.value or 0
    if isinstance(argument, (bool, np.ndarray)) or not hasattr(argument, "__index__"):
        raise TypeError(f"not an address or an array of a device, but {type(argument).__name__}")
    return operator.index(argument).to_bytes(8, "little")


def _pack(argument: object, dtype: np.dtype[Any]) -> bytes:
    if isinstance(argument, ctypes._SimpleCData):  # noqa: SLF001 -- the base class of c_int, c_float and others
        argument = argument.value
    if dtype.kind == "V":
        content = argument.tobytes() if isinstance(argument, (np.void, np.ndarray)) else bytes(memoryview(argument))  # type: ignore[arg-type]  # raises
        if len(content) != dtype.itemsize:
            raise ValueError(f"{len(content)} bytes instead of {dtype.itemsize}")
        return content
    if not isinstance(argument, _ACCEPTED[dtype.kind]) or (isinstance(argument, bool) and dtype.kind != "b"):
        raise TypeError(f"cannot be made of {type(argument).__name__}")
    if dtype.kind in "iu":
        try:
            return operator.index(argument).to_bytes(dtype.itemsize, sys.byteorder, signed=dtype.kind == "i")  # type: ignore[arg-type]  # an int
        except OverflowError:
            limits = np.iinfo(dtype)
            raise ValueError(f"{argument} is not from {limits.min} to {limits.max}") from None
    if argument.__class__ is float and dtype.char in _FLOATS:
        with suppress(OverflowError):  # NumPy returns infinity
            return _FLOATS[dtype.char].pack(argument)
    with np.errstate(over="ignore"):
        return np.array(argument).astype(dtype).tobytes()


def _parameter_sizes(context: _ModuleContext, function: Function) -> list[int] | None:
    """Return the size of each parameter in bytes; None if the driver does not report it."""
    sizes: list[int] = []
    api = driver_api()
    try:
        while not (found := context.invoke(api.cuFuncGetParamInfo, function.handle, len(sizes)))[0]:
            sizes.append(int(found[2]))
    except RuntimeError as error:
        if isinstance(error, DeviceError):
            raise
        return None
    if int(found[0]) != cuda_errors.INVALID_VALUE:  # which is returned after the last parameter
        check(found, "cuFuncGetParamInfo", context.name)
    return sizes
