"""Dispatches of kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from . import constants as k
from .control import control
from .encoders import MTLCommandEncoder
from .faults import GPUFault
from .libraries import MTLComputePipelineState
from .msl import compiler
from .objects import instance, unsigned
from .resources import MTLHeap
from .structures import MTLSize, size_of

LAST_INDEX = 30
_MAX_BYTES = 4096


@dataclass
class Arguments:
    """The tables of arguments of an encoder."""

    pipeline: MTLComputePipelineState | None = None
    buffers: dict[int, tuple[Any, int] | bytes] = field(default_factory=dict)  # a buffer and an offset, or data
    threadgroup: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Arguments:
        return Arguments(self.pipeline, dict(self.buffers), dict(self.threadgroup))


class Dispatch:
    """One execution of a kernel, with the arguments of that moment."""

    def __init__(self, device: Any, arguments: Arguments, grid: MTLSize, group: MTLSize) -> None:
        pipeline = arguments.pipeline
        if pipeline is None:
            control.violated("pipeline", "a dispatch without setComputePipelineState_")
        assert pipeline is not None
        self.kernel = pipeline._kernel
        self.library = pipeline._library
        self.grid, self.group = grid, group
        self._check_sizes(device, pipeline, arguments)
        self.regions: list[tuple[int, Any, int, bool]] = []  # index, region, offset, whether it is written
        self.data: list[tuple[int, bytes]] = []
        self.threadgroup = dict(arguments.threadgroup)
        for binding in self.kernel.bindings:
            self._bind(binding, arguments)

    def _check_sizes(self, device: Any, pipeline: Any, arguments: Arguments) -> None:
        count = self.group.width * self.group.height * self.group.depth
        if not 0 < count <= pipeline._threads:
            control.violated("threadgroup-size", f"{count} threads in a group of at most {pipeline._threads}")
        if 0 in self.grid:
            control.violated("grid", f"a grid of {tuple(self.grid)} threads")
        if pipeline._multiple and count % 32:
            control.violated("threadgroup-size", f"{count} threads, but the pipeline promises multiples of 32")
        memory = sum(arguments.threadgroup.values())
        if memory > device._gpu.threadgroup_memory:
            control.violated("threadgroup-memory", f"{memory} bytes, limit {device._gpu.threadgroup_memory}")

    def _bind(self, binding: compiler.Binding, arguments: Arguments) -> None:
        where = f"argument {binding.name} (index {binding.index}) of {self.kernel.name}"
        if binding.space == "threadgroup":
            if self.threadgroup.get(binding.index, 0) < binding.size:
                control.violated("threadgroup-memory", f"{where} has {self.threadgroup.get(binding.index, 0)} bytes")
            return
        bound = arguments.buffers.get(binding.index)
        if bound is None:
            control.violated("binding", where)
        if isinstance(bound, bytes):
            if len(bound) < binding.size:
                control.violated("binding-size", f"{where} needs {binding.size} bytes and has {len(bound)}")
            if not binding.read_only:
                control.violated("bytes", f"{where} is written, but setBytes has bound data")
            self.data.append((binding.index, bound))
            return
        assert bound is not None
        buffer, offset = bound
        if offset % min(binding.alignment, 4 if binding.space == "constant" else binding.alignment):
            control.violated("binding-offset", f"{where} is at {offset}, alignment {binding.alignment}")
        if buffer._region.nbytes - offset < binding.size:
            left = buffer._region.nbytes - offset
            control.violated("binding-size", f"{where} needs {binding.size} bytes and has {left}")
        buffer._usable(offset, 0, where)
        self.regions.append((binding.index, buffer._region, offset, not binding.read_only))

    def __call__(self, current: Any) -> None:
        table = (ctypes.c_void_p * (LAST_INDEX + 1))()
        kept = []
        for index, region, offset, written in self.regions:
            table[index] = current.use(region, f"kernel {self.kernel.name}", offset, write=written)
        for index, data in self.data:
            kept.append(_aligned(data))
            table[index] = kept[-1][1]
        groups = (ctypes.c_void_p * (LAST_INDEX + 1))()
        for index, nbytes in self.threadgroup.items():
            kept.append(_aligned(b"\xa5" * nbytes))
            groups[index] = kept[-1][1]
        triple = ctypes.c_uint * 3
        fibers = int(self.kernel.fibers)
        diverged = compiler.runtime().softmetal_run(
            self.kernel.entry, table, groups, triple(*self.grid), triple(*self.group), fibers
        )
        for _, region, _, written in self.regions:
            if written and not region.storage.is_intact():
                control.note_violation("kernel-range", f"kernel {self.kernel.name}, {region.nbytes} bytes")
                raise GPUFault(k.MTLCommandBufferErrorPageFault)
        if diverged:
            control.violated("barrier", f"threads of kernel {self.kernel.name} did not all reach a barrier")


def _aligned(data: bytes) -> tuple[Any, int]:
    """Return memory with some data at an address that is aligned for each type, and the address."""
    memory = ctypes.create_string_buffer(len(data) + 64)
    address = -(-ctypes.addressof(memory) // 64) * 64
    ctypes.memmove(address, data, len(data))
    return memory, address


class Indirect:
    """The execution of a range of an indirect command buffer, whose commands are not ordered among themselves."""

    def __init__(self, operations: list[Any], *, serial: bool) -> None:
        self._operations, self._serial = operations, serial

    def __call__(self, current: Any) -> None:
        with current.unordered(serial=self._serial):
            for operation in self._operations:
                current.next_command()
                operation(current)


class MTLComputeCommandEncoder(MTLCommandEncoder):
    """An encoder of dispatches."""

    __slots__ = ("_arguments", "_dispatch_type", "_resident")
    _kind = "compute"

    def __init__(self, buffer: Any, dispatch_type: int = k.MTLDispatchTypeSerial) -> None:
        super().__init__(buffer, concurrent=dispatch_type == k.MTLDispatchTypeConcurrent)
        self._dispatch_type = dispatch_type
        self._arguments = Arguments()
        self._resident: set[int] = set()  # numbers of regions, and identities of heaps' storages

    def dispatchType(self) -> int:
        return self._dispatch_type

    def setComputePipelineState_(self, pipeline: Any) -> None:
        self._arguments.pipeline = self._uses(instance(pipeline, MTLComputePipelineState, "state"))

    def setBuffer_offset_atIndex_(self, buffer: Any, offset: int, index: int) -> None:
        index, offset = self._index(index), unsigned(offset, "offset")
        if buffer is None:
            self._check()
            self._arguments.buffers.pop(index, None)
            return
        self._buffer_argument(buffer, "buffer")
        if offset >= buffer._region.nbytes:
            control.violated("binding-offset", f"offset {offset} of a buffer of {buffer._region.nbytes} bytes")
        self._arguments.buffers[index] = (buffer, offset)

    def setBufferOffset_atIndex_(self, offset: int, index: int) -> None:
        bound = self._arguments.buffers.get(self._index(index))
        if not isinstance(bound, tuple):
            control.violated("binding", f"setBufferOffset_atIndex_: no buffer is bound at index {index}")
        else:
            if unsigned(offset, "offset") >= bound[0]._region.nbytes:
                control.violated("binding-offset", f"offset {offset} of a buffer of {bound[0]._region.nbytes} bytes")
            self._arguments.buffers[index] = (bound[0], offset)

    def setBuffers_offsets_withRange_(self, buffers: Any, offsets: Any, extent: Any) -> None:
        location, length = extent
        if not len(buffers) == len(offsets) == length:
            raise ValueError(f"{len(buffers)} buffers and {len(offsets)} offsets for a range of {length}")
        for place, (buffer, offset) in enumerate(zip(buffers, offsets, strict=True)):
            MTLComputeCommandEncoder.setBuffer_offset_atIndex_(self, buffer, offset, location + place)

    def setBytes_length_atIndex_(self, data: Any, length: int, index: int) -> None:
        self._check()
        index, length = self._index(index), unsigned(length, "length")
        if not 0 < length <= _MAX_BYTES:
            control.violated("bytes", f"setBytes of {length} bytes")
        view = memoryview(data).cast("B")
        if length > view.nbytes:
            raise ValueError(f"the data has {view.nbytes} bytes, not {length}")
        self._arguments.buffers[index] = bytes(view[:length])

    def setThreadgroupMemoryLength_atIndex_(self, length: int, index: int) -> None:
        self._check()
        index, length = self._index(index), unsigned(length, "length")
        if length % 16 or length > self.device()._gpu.threadgroup_memory:
            control.violated("threadgroup-memory", f"{length} bytes")
        self._arguments.threadgroup[index] = length

    def useResource_usage_(self, resource: Any, usage: int) -> None:
        if not 0 < unsigned(usage, "usage") <= k.MTLResourceUsageRead | k.MTLResourceUsageWrite:
            control.violated("options", f"usage is {usage}")
        self._resident.add(self._buffer_argument(resource, "resource")._region.number)

    def useResources_count_usage_(self, resources: Any, count: int, usage: int) -> None:
        for resource in resources[:count]:
            MTLComputeCommandEncoder.useResource_usage_(self, resource, usage)

    def useHeap_(self, heap: Any) -> None:
        self._resident.add(-id(self._uses(instance(heap, MTLHeap, "heap"))._storage))

    def useHeaps_count_(self, heaps: Any, count: int) -> None:
        for heap in heaps[:count]:
            MTLComputeCommandEncoder.useHeap_(self, heap)

    def executeCommandsInBuffer_withRange_(self, commands: Any, extent: Any) -> None:
        from .indirect import execute

        self._uses(commands)
        serial = self._dispatch_type == k.MTLDispatchTypeSerial
        operations = execute(self, commands, extent)
        self._add(Indirect(operations, serial=serial))

    def _is_resident(self, region: Any) -> bool:
        return region.number in self._resident or -id(region.storage) in self._resident

    def dispatchThreads_threadsPerThreadgroup_(self, grid: Any, group: Any) -> None:
        grid, group = size_of(grid, "threadsPerGrid"), size_of(group, "threadsPerThreadgroup")
        families = self.device()._gpu.families
        if not {"Apple4", "Mac2"} & {*families}:
            control.violated("nonuniform", f"dispatchThreads on {self.device()._gpu.name}")
        self._dispatch(grid, group)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Any, group: Any) -> None:
        groups, group = size_of(groups, "threadgroupsPerGrid"), size_of(group, "threadsPerThreadgroup")
        self._dispatch(MTLSize(*(a * b for a, b in zip(groups, group, strict=True))), group)

    def memoryBarrierWithScope_(self, scope: int) -> None:
        self._barrier(unsigned(scope, "scope"))

    def memoryBarrierWithResources_count_(self, resources: Any, count: int) -> None:
        for resource in resources[:count]:
            self._buffer_argument(resource, "resource")
        self._barrier(k.MTLBarrierScopeBuffers)

    def _barrier(self, scope: int) -> None:
        if scope & ~(k.MTLBarrierScopeBuffers | k.MTLBarrierScopeTextures):
            control.violated("options", f"scope {scope} in a compute encoder")
        self._add(lambda current: current.barrier())

    def _dispatch(self, grid: MTLSize, group: MTLSize) -> None:
        self._check()
        self._add(Dispatch(self.device(), self._arguments.copy(), grid, group))

    def _index(self, index: int) -> int:
        if unsigned(index, "index") > LAST_INDEX:
            control.violated("binding-index", f"index {index}")
        return index
