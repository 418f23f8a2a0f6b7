"""Devices: what they can do, the memory that they have, and the objects that they create."""

from __future__ import annotations

from typing import Any

from . import constants as k
from .control import control
from .counters import MTLCounterSet, counter_sets, gpu_now, new_sample_buffer
from .events import MTLEvent, MTLFence, MTLSharedEvent
from .indirect import MTLIndirectCommandBuffer, new_indirect
from .libraries import MTLLibrary, new_library, new_library_of_file, new_pipeline, new_pipeline_from_descriptor
from .machines import GPU
from .objects import NSObject, no_error, selector, unsigned
from .queues import MTLCommandQueue
from .resources import (
    MTLBuffer,
    MTLHeap,
    MTLSizeAndAlign,
    check_options,
    new_buffer,
    new_buffer_without_copy,
    new_heap,
    round_up,
)
from .structures import MTLSize

_FAMILIES = {value: name.removeprefix("MTLGPUFamily") for name, value in vars(k).items() if "GPUFamily" in name}
_DEFAULT_LIMIT = 64  # uncompleted command buffers of a queue


class MTLArchitecture(NSObject):
    """The family of a GPU's chip."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def name(self) -> str:
        return self._name


class MTLDevice(NSObject):
    """A GPU."""

    __slots__ = ("_allocated", "_gpu", "_index")

    def __init__(self, gpu: GPU, index: int) -> None:
        super().__init__()
        self._gpu, self._index = gpu, index
        self._allocated = 0

    # properties

    def name(self) -> str:
        return self._gpu.name

    def registryID(self) -> int:
        return 0x100000300 + self._index

    def architecture(self) -> MTLArchitecture:
        return MTLArchitecture(self._gpu.architecture)

    def hasUnifiedMemory(self) -> bool:
        return self._gpu.unified

    def isLowPower(self) -> bool:
        return self._gpu.low_power

    def isRemovable(self) -> bool:
        return self._gpu.removable

    def isHeadless(self) -> bool:
        return self._gpu.headless

    def location(self) -> int:
        return k.MTLDeviceLocationBuiltIn

    def locationNumber(self) -> int:
        return 0

    def peerGroupID(self) -> int:
        return 0

    def recommendedMaxWorkingSetSize(self) -> int:
        return self._gpu.working_set

    def maxBufferLength(self) -> int:
        return self._gpu.max_buffer

    def maxThreadgroupMemoryLength(self) -> int:
        return self._gpu.threadgroup_memory

    def maxThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(self._gpu.threads, self._gpu.threads, self._gpu.threads)

    def currentAllocatedSize(self) -> int:
        return self._allocated

    def argumentBuffersSupport(self) -> int:
        return k.MTLArgumentBuffersTier2

    def supportsFamily_(self, family: int) -> bool:
        return _FAMILIES.get(unsigned(family, "family")) in self._gpu.families

    # resources

    def heapBufferSizeAndAlignWithLength_options_(self, length: int, options: int) -> MTLSizeAndAlign:
        check_options(self, unsigned(options, "options"))
        length = unsigned(length, "length")
        if not length:
            control.violated("zero-size", "heapBufferSizeAndAlignWithLength_options_ of 0 bytes")
        return self._size_and_align(length)

    def newHeapWithDescriptor_(self, descriptor: Any) -> MTLHeap | None:
        return new_heap(self, descriptor)

    def newBufferWithLength_options_(self, length: int, options: int) -> MTLBuffer | None:
        return new_buffer(self, length, options)

    def newBufferWithBytes_length_options_(self, data: Any, length: int, options: int) -> MTLBuffer | None:
        view = memoryview(data).cast("B")
        if unsigned(length, "length") > view.nbytes:
            raise ValueError(f"the data has {view.nbytes} bytes, not {length}")
        buffer = new_buffer(self, length, options)
        if buffer is not None:
            buffer._region.view(0, length)[:] = view[:length]
        return buffer

    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, memory: Any, length: int, options: int, deallocator: Any
    ) -> MTLBuffer:
        return new_buffer_without_copy(self, memory, length, options, deallocator)

    def _size_and_align(self, length: int) -> MTLSizeAndAlign:
        align = self._gpu.heap_alignment
        return MTLSizeAndAlign(round_up(length, align), align)

    def _reserve(self, nbytes: int) -> bool:
        with control.lock:
            limit = self._gpu.memory if control.memory is None else control.memory
            if self._allocated + nbytes > limit:
                return False
            self._allocated += nbytes
            return True

    def _release(self, nbytes: int) -> None:
        with control.lock:
            self._allocated -= nbytes

    # queues and events

    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue(self, _DEFAULT_LIMIT)

    def newCommandQueueWithMaxCommandBufferCount_(self, count: int) -> MTLCommandQueue:
        if not unsigned(count, "count"):
            control.violated("queue-size", "a queue of 0 command buffers")
        return MTLCommandQueue(self, count)

    def newEvent(self) -> MTLEvent:
        return MTLEvent(self)

    def newSharedEvent(self) -> MTLSharedEvent:
        return MTLSharedEvent(self)

    def newFence(self) -> MTLFence:
        return MTLFence(self)

    # libraries

    def newLibraryWithSource_options_error_(self, source: str, options: Any, error: None) -> Any:
        no_error(error)
        return new_library(self, source, options)

    def newLibraryWithURL_error_(self, url: Any, error: None) -> Any:
        no_error(error)
        return new_library_of_file(self, url)

    def newComputePipelineStateWithFunction_error_(self, function: Any, error: None) -> Any:
        no_error(error)
        return new_pipeline(self, function)

    def newComputePipelineStateWithFunction_options_reflection_error_(
        self, function: Any, options: int, reflection: None, error: None
    ) -> Any:
        no_error(error)
        no_error(reflection)
        pipeline, failure = new_pipeline(self, function)
        return pipeline, None if pipeline is None else pipeline._reflection(), failure

    def newComputePipelineStateWithDescriptor_options_reflection_error_(
        self, descriptor: Any, options: int, reflection: None, error: None
    ) -> Any:
        no_error(error)
        no_error(reflection)
        pipeline, failure = new_pipeline_from_descriptor(self, descriptor)
        return pipeline, None if pipeline is None else pipeline._reflection(), failure

    # indirect commands and counters

    def newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        self, descriptor: Any, count: int, options: int
    ) -> MTLIndirectCommandBuffer:
        return new_indirect(self, descriptor, count, options)

    def counterSets(self) -> tuple[MTLCounterSet, ...]:
        return counter_sets(self)

    def supportsCounterSampling_(self, point: int) -> bool:
        return self._gpu.timestamps and unsigned(point, "samplingPoint") == k.MTLCounterSamplingPointAtStageBoundary

    def newCounterSampleBufferWithDescriptor_error_(self, descriptor: Any, error: None) -> Any:
        no_error(error)
        return new_sample_buffer(self, descriptor)

    def sampleTimestamps_gpuTimestamp_(self, cpu: None, gpu: None) -> tuple[int, int]:
        no_error(cpu)
        no_error(gpu)
        return int(control.clock() * 1e9), gpu_now()

    def newDefaultLibrary(self) -> MTLLibrary | None:
        return None  # a program that is no bundle has none


_devices: list[MTLDevice] = []
control.on_new_machine(_devices.clear)


def _all() -> list[MTLDevice]:
    if not _devices:
        _devices.extend(MTLDevice(gpu, index) for index, gpu in enumerate(control.machine.gpus))
    return _devices


def _copy_all_devices() -> tuple[MTLDevice, ...]:
    return tuple(_all())


def _create_system_default_device() -> MTLDevice | None:
    return next(iter(_all()), None)


MTLCopyAllDevices = selector("MTLCopyAllDevices", _copy_all_devices)
MTLCreateSystemDefaultDevice = selector("MTLCreateSystemDefaultDevice", _create_system_default_device)
