"""Sharing of device memory and events between processes.

Memory is shared by the driver's handles. Shared events are slots in shared memory, as those of the CPU device: an event
of the driver keeps only its last record, and a stream that waits for an event of a process that was killed would wait
forever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from threading import RLock
from typing import Any

from forebay.backends.nvidia._memory import close_memory
from forebay.backends.nvidia.address_space import CudaAddressSpaces
from forebay.backends.nvidia.calls import FATAL, call_into, check, driver_api, error_of, unknown_address
from forebay.backends.nvidia.context import PrimaryContext
from forebay.errors import DeviceError, Unsupported
from forebay.vendor import SharedEvent, cuda_errors, integer_of

__all__ = ["CudaIpc"]

_HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE

_NOT_OF_THE_HANDLE = FATAL | {
    cuda_errors.OUT_OF_MEMORY,
    cuda_errors.NOT_INITIALIZED,
    cuda_errors.DEINITIALIZED,
    cuda_errors.NO_DEVICE,
    cuda_errors.INVALID_DEVICE,
    cuda_errors.CONTEXT_IS_DESTROYED,
}


class CudaIpc:
    """The shared memory of a port; implements `spi.Shares`.

    `segments` has, by address, the address that the driver returned and the size, and `handles` the handles of these
    segments by what the driver returned. The port removes both when it releases a segment.
    """

    def __init__(
        self,
        context: PrimaryContext,
        segments: Mapping[int, tuple[int, int]],
        handles: dict[int, bytes],
        spaces: CudaAddressSpaces,
    ) -> None:
        self._context = context
        self._segments = segments
        self._handles = handles
        self._spaces = spaces
        self._opened: dict[int, int] = {}  # memory of other processes: address, and how often it was opened
        self._sizes: dict[int, int] = {}  # of that memory, in bytes
        self._lock = RLock()

    def share(self, address: int) -> tuple[bytes, int]:
        address = integer_of(address, "address")
        origin = self._origin_of(address)
        if origin is None and self._spaces.contains(address):
            message = f"{self._context.name}: memory of expandable segments cannot be shared"
            raise Unsupported(message, ability="Growable")
        if origin is None:
            raise unknown_address(address, "share", "reserve", self._context.name)
        handle = self._handles.get(origin)
        if handle is None:
            with self._context.current() as api:
                shared = check(api.cuIpcGetMemHandle(origin), "cuIpcGetMemHandle", self._context.name)
            handle = self._handles[origin] = ctypes.string_at(shared.getPtr(), _HANDLE_BYTES)
        return handle, address - origin

    def open(self, data: object) -> tuple[int, int]:
        if not isinstance(data, bytes | bytearray | memoryview) or len(data) != _HANDLE_BYTES:
            found = f"{len(data)} bytes" if hasattr(data, "__len__") else type(data).__name__
            message = f"invalid resource handle: a handle has {_HANDLE_BYTES} bytes, not {found}"
            raise DeviceError(message, code=cuda_errors.INVALID_HANDLE, call="open_shared", device=self._context.name)
        handle = driver_api().CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), bytes(data), _HANDLE_BYTES)
        with self._lock, self._context.current() as api:
            made: list[Any] = []
            address = 0
            try:
                call_into(made, api.cuIpcOpenMemHandle, handle, api.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
                if made[0][0]:
                    raise self._open_error(int(made[0][0]))
                opened = int(made[0][1])
                found = check(api.cuMemGetAddressRange(opened), "cuMemGetAddressRange", self._context.name)
                base, nbytes = (int(each) for each in found)
                size, count = base + nbytes - opened, self._opened.get(opened, 0) + 1
                self._sizes[opened], self._opened[opened], address = size, count, opened
            finally:
                if made and not made[0][0] and not address:  # also after an interrupt
                    api.cuIpcCloseMemHandle(made[0][1])
            return address, size

    def opened(self) -> list[tuple[int, int]]:
        """Return address and size of each open segment of another process."""
        return [(address, size) for address, size in tuple(self._sizes.items()) if address in self._opened]

    def close(self, address: int) -> None:
        address = integer_of(address, "address")
        with self._lock:
            self._context.check_usable()
            if address not in self._opened:
                raise unknown_address(address, "close_shared", "open_shared", self._context.name)
            with self._context.current():
                code = close_memory(self._opened, address)
            if code:
                raise error_of(code, "cuIpcCloseMemHandle", self._context.name)
            if address not in self._opened:
                self._sizes.pop(address, None)

    def make_mark(self) -> SharedEvent:
        return SharedEvent.create()

    def open_mark(self, handle: bytes) -> SharedEvent:
        return SharedEvent.open(handle, self._context.name)

    # ---- For the port

    def close_all(self) -> None:
        """Close the memory of other processes. Errors are ignored: the device may be lost."""
        self._handles.clear()
        self._sizes.clear()
        with self._context.current():
            for address in tuple(self._opened):
                while address in self._opened and not close_memory(self._opened, address):
                    pass

    def _origin_of(self, address: int) -> int | None:
        """Return the address that the driver returned for the segment that contains an address."""
        for start, (origin, nbytes) in tuple(self._segments.items()):
            if start <= address < start + nbytes:
                return origin
        return None

    def _open_error(self, code: int) -> DeviceError:
        if code == cuda_errors.INVALID_CONTEXT:
            message = "invalid device context: the memory is shared by this process, which cannot open it"
            return DeviceError(message, code=code, call="open_shared", device=self._context.name)
        error = error_of(code, "cuIpcOpenMemHandle", self._context.name)
        if code not in _NOT_OF_THE_HANDLE:
            error.add_note(
                "The process that shared the memory may have ended or freed it, belongs to another user, or its GPU is "
                "not visible to this process."
            )
        return error
