"""ctypes binding of libnvidia-ml.so.1 with the names of nvidia-ml-py, limited to the functions that forebay uses."""

from __future__ import annotations

from ctypes import CDLL, Structure, byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from typing import Any, ClassVar

from forebay.errors import DeviceError

__all__ = [
    "LIBRARY",
    "Memory",
    "NVMLError",
    "NVMLErrorDriverNotLoaded",
    "NVMLErrorNotFound",
    "NvmlLibrary",
    "Process",
    "Utilization",
    "handle_of",
]

LIBRARY = "libnvidia-ml.so.1"

_DRIVER_NOT_LOADED = 9
_INSUFFICIENT_SIZE = 7
_NOT_FOUND = 6
_NOT_AVAILABLE = 0xFFFF_FFFF_FFFF_FFFF  # unknown memory of a process
_MAX_TEXT = 96  # bytes of a UUID or a name, with its terminator


class NVMLError(DeviceError):
    """An error of the library: `code` is its error code, `call` its function."""

    @property
    def value(self) -> int:
        return self.code


class NVMLErrorDriverNotLoaded(NVMLError):
    """The library is installed, but its driver is not loaded."""


class NVMLErrorNotFound(NVMLError):
    """The device that the call names does not exist."""


class Memory(Structure):
    total: int
    free: int
    used: int
    _fields_: ClassVar = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Utilization(Structure):
    gpu: int
    memory: int
    _fields_: ClassVar = [("gpu", c_uint), ("memory", c_uint)]


class Process(Structure):
    pid: int
    _fields_: ClassVar = [
        ("pid", c_uint),
        ("used_bytes", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]

    @property
    def usedGpuMemory(self) -> int | None:  # noqa: N802 -- nvidia-ml-py's name
        """Bytes of device memory; None if unknown."""
        return None if self.used_bytes == _NOT_AVAILABLE else int(self.used_bytes)


class NvmlLibrary:
    """The loaded library. Raises OSError if it cannot be loaded; every function raises NVMLError if it fails.

    Functions and errors have nvidia-ml-py's names, so that either can be used.
    """

    NVMLError = NVMLError
    NVMLError_DriverNotLoaded = NVMLErrorDriverNotLoaded
    NVMLError_NotFound = NVMLErrorNotFound

    def __init__(self) -> None:
        self._library = CDLL(LIBRARY)
        self._library.nvmlErrorString.restype = c_char_p

    def nvmlInit(self) -> None:  # noqa: N802 -- nvidia-ml-py's name, as all below
        """Initialize the library. Calls are counted: each needs an `nvmlShutdown`."""
        self._call("nvmlInit_v2")

    def nvmlShutdown(self) -> None:  # noqa: N802 -- as above
        self._call("nvmlShutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 -- as above
        count = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        return count.value

    def nvmlDeviceGetHandleByIndex(self, index: int) -> c_void_p:  # noqa: N802 -- as above
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        return handle

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> c_void_p:  # noqa: N802 -- as above
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(handle))
        return handle

    def nvmlDeviceIsMigDeviceHandle(self, handle: c_void_p) -> int:  # noqa: N802 -- as above
        return self._number("nvmlDeviceIsMigDeviceHandle", handle)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: c_void_p) -> c_void_p:  # noqa: N802 -- as above
        parent = c_void_p()
        self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, byref(parent))
        return parent

    def nvmlDeviceGetIndex(self, handle: c_void_p) -> int:  # noqa: N802 -- as above
        return self._number("nvmlDeviceGetIndex", handle)

    def nvmlDeviceGetUUID(self, handle: c_void_p) -> str:  # noqa: N802 -- as above
        return self._text("nvmlDeviceGetUUID", handle)

    def nvmlDeviceGetName(self, handle: c_void_p) -> str:  # noqa: N802 -- as above
        return self._text("nvmlDeviceGetName", handle)

    def nvmlDeviceGetMemoryInfo(self, handle: c_void_p) -> Memory:  # noqa: N802 -- as above
        memory = Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, byref(memory))
        return memory

    def nvmlDeviceGetUtilizationRates(self, handle: c_void_p) -> Utilization:  # noqa: N802 -- as above
        rates = Utilization()
        self._call("nvmlDeviceGetUtilizationRates", handle, byref(rates))
        return rates

    def nvmlDeviceGetTemperature(self, handle: c_void_p, sensor: int) -> int:  # noqa: N802 -- as above
        return self._number("nvmlDeviceGetTemperature", handle, c_int(sensor))

    def nvmlDeviceGetPowerUsage(self, handle: c_void_p) -> int:  # noqa: N802 -- as above
        return self._number("nvmlDeviceGetPowerUsage", handle)

    def nvmlDeviceGetClockInfo(self, handle: c_void_p, clock: int) -> int:  # noqa: N802 -- as above
        return self._number("nvmlDeviceGetClockInfo", handle, c_int(clock))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: c_void_p) -> list[Process]:  # noqa: N802 -- as above
        capacity = 0
        while True:  # new processes may start between two calls
            count, found = c_uint(capacity), (Process * capacity)()
            try:
                self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, byref(count), found if capacity else None)
            except NVMLError as error:
                if error.code != _INSUFFICIENT_SIZE or count.value <= capacity:
                    raise
                capacity = count.value + 4
            else:
                return list(found)[: count.value]

    def _number(self, function: str, *arguments: object) -> int:
        found = c_uint()
        self._call(function, *arguments, byref(found))
        return found.value

    def _text(self, function: str, handle: c_void_p) -> str:
        buffer = create_string_buffer(_MAX_TEXT)
        self._call(function, handle, buffer, c_uint(_MAX_TEXT))
        return buffer.value.decode("ascii", "replace")

    def _call(self, function: str, *arguments: object) -> None:
        code = int(getattr(self._library, function)(*arguments))  # AttributeError if the library is too old
        if not code:
            return
        text = self._library.nvmlErrorString(code)
        kind = {_DRIVER_NOT_LOADED: NVMLErrorDriverNotLoaded, _NOT_FOUND: NVMLErrorNotFound}.get(code, NVMLError)
        raise kind(text.decode("ascii", "replace") if text else f"error {code}", code=code, call=function)


def handle_of(nvml: Any, uuid: str) -> Any:
    """Return the handle, of this binding or of nvidia-ml-py, for the UUID of a GPU or MIG instance without its prefix.

    CUDA does not report which of the two a device is.
    """
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError_NotFound:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
