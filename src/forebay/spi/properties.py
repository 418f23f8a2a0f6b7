"""Properties of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DeviceProps", "Heaps"]


_MAX_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Heaps:
    """Heap parameters of a device that allocates memory as heaps of several buffers, as Metal does.

    Such a device gets PyTorch's allocator for MPS instead of the one for CUDA.

    Parameters
    ----------
    recommended : int
        Bytes that the system advises one process to use. The allocator's watermarks are fractions of it.
    longest : int
        Upper limit of a buffer's length in bytes, exclusive.
    unified : bool, default True
        Whether the host uses the same physical memory.
    alignment : int, default 256
        Alignment of buffers in bytes: a power of two, 256 or more.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    recommended: int
    longest: int
    unified: bool = True
    alignment: int = 256

    def __post_init__(self) -> None:
        for name, number in (("recommended", self.recommended), ("longest", self.longest)):
            if type(number) is not int or not 0 < number < _MAX_BYTES:
                raise ValueError(f"{name} must be a number of bytes from 1 to 2**62 - 1, not {number!r}")
        if type(self.alignment) is not int or self.alignment < 256 or self.alignment & (self.alignment - 1):
            raise ValueError(f"alignment must be a power of two, 256 or more, not {self.alignment!r}")


@dataclass(frozen=True, slots=True)
class DeviceProps:
    """Properties of a device.

    Parameters
    ----------
    kind : str
        Device kind, for example "cuda". Equals the driver's kind.
    index : int
        Index of the device among the driver's devices.
    name : str
        Product name.
    total_bytes : int
        Memory capacity in bytes when the device was opened.
    host_visible : bool, default False
        Whether the CPU can read and write the device's memory.
    zero_pages : bool, default False
        Whether device memory is anonymous memory of this process: its pages are zero when they are mapped, and again
        after MADV_DONTNEED.
    fine_segments : bool, default False
        Whether `Port.reserve` takes only microseconds. Large blocks then get segments of their own size instead of
        PyTorch's 20 MiB, and idle memory is returned to the port.
    multi_processor_count : int, default 0
        Number of multiprocessors. Together with `max_threads_per_multi_processor` it determines the launch geometry of
        random fills and so which number each element gets. 0 if the device has no such notion.
    max_threads_per_multi_processor : int, default 0
        Number of resident threads per multiprocessor; 0 if the device has no such notion.
    queue_visible : bool, default False
        Whether host functions that a queue runs may access device memory, even if it is not `host_visible`.
    emulated : bool, default False
        Whether the device is emulated on other hardware.
    pooled_streams : int, default 0
        Number of queues per priority that new streams share round-robin, as CUDA's 32. With 0 each stream has its own
        queue.
    stream_priorities : int, default 4
        Number of stream priorities. With 1, stream ids count up from 1, as for MPS.
    closes_before_release : bool, default False
        Whether other processes must close a shared segment (`Shares`) before its owner releases it, as CUDA requires.
    dlpack_type : int, default 0
        DLPack's number of the device type (`DLDeviceType`) under which other libraries of the process can use the
        memory's addresses, such as 2 for CUDA; 0 if they cannot.
    heaps : Heaps, optional
        Heap parameters, if memory is allocated as for Metal instead of as for CUDA.
    details : mapping of str to object, optional
        Further properties under PyTorch's names, such as "major" and "minor".
    """

    kind: str
    index: int
    name: str
    total_bytes: int
    host_visible: bool = False
    zero_pages: bool = False
    fine_segments: bool = False
    multi_processor_count: int = 0
    max_threads_per_multi_processor: int = 0
    queue_visible: bool = False
    emulated: bool = False
    pooled_streams: int = 0
    stream_priorities: int = 4
    closes_before_release: bool = False
    dlpack_type: int = 0
    heaps: Heaps | None = None
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
