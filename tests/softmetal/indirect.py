"""Indirect command buffers: dispatches that are encoded once and executed often."""

from __future__ import annotations

from typing import Any

from . import constants as k
from .compute import LAST_INDEX, Arguments, Dispatch
from .control import control
from .libraries import MTLComputePipelineState
from .objects import Descriptor, Labeled, NSObject, autoreleased, instance, properties, unsigned
from .resources import MTLBuffer, check_options
from .structures import MTLSize, size_of

_DISPATCHES = k.MTLIndirectCommandTypeConcurrentDispatch | k.MTLIndirectCommandTypeConcurrentDispatchThreads


@properties(
    commandTypes=0,
    inheritBuffers=False,
    inheritPipelineState=False,
    maxKernelBufferBindCount=31,
    maxKernelThreadgroupMemoryBindCount=31,
)
class MTLIndirectCommandBufferDescriptor(Descriptor):
    """The descriptor of an indirect command buffer."""

    __slots__ = ()


class Command:
    """One place of an indirect command buffer."""

    def __init__(self) -> None:
        self.arguments = Arguments()
        self.sizes: tuple[MTLSize, MTLSize] | None = None  # of the grid and of a group; None: nothing to do
        self.barrier = False


class MTLIndirectCommandBuffer(Labeled):
    """A table of commands."""

    __slots__ = ("_commands", "_device", "_values")

    def __init__(self, device: Any, values: dict[str, Any], count: int) -> None:
        super().__init__()
        self._device, self._values = device, values
        self._commands = [Command() for _ in range(count)]

    def device(self) -> Any:
        return self._device

    def size(self) -> int:
        return len(self._commands)

    def indirectComputeCommandAtIndex_(self, index: int) -> Any:
        if unsigned(index, "index") >= len(self._commands):
            control.violated("icb-range", f"command {index} of {len(self._commands)}")
        return autoreleased(MTLIndirectComputeCommand(self, index), "indirectComputeCommandAtIndex_")

    def resetWithRange_(self, extent: Any) -> None:
        for index in self._range(extent):
            self._commands[index] = Command()

    def _range(self, extent: Any) -> range:
        location, length = (unsigned(each, "range") for each in extent)
        if location + length > len(self._commands):
            control.violated("icb-range", f"commands {location} to {location + length} of {len(self._commands)}")
        return range(location, location + length)


class MTLIndirectComputeCommand(NSObject):
    """The encoder of one command."""

    __slots__ = ("_index", "_owner")

    def __init__(self, owner: MTLIndirectCommandBuffer, index: int) -> None:
        super().__init__()
        self._owner, self._index = owner, index

    def setComputePipelineState_(self, pipeline: Any) -> None:
        instance(pipeline, MTLComputePipelineState, "pipelineState")
        if self._owner._values.get("inheritPipelineState"):
            control.violated("icb-inherit", "the commands inherit the pipeline state")
        if not pipeline._indirect:
            control.violated("icb-pipeline", f"the pipeline of {pipeline._kernel.name}")
        if pipeline._device is not self._owner._device:
            control.violated("device", "the pipeline belongs to another device")
        self._command().arguments.pipeline = pipeline

    def setKernelBuffer_offset_atIndex_(self, buffer: Any, offset: int, index: int) -> None:
        instance(buffer, MTLBuffer, "buffer")
        if self._owner._values.get("inheritBuffers"):
            control.violated("icb-inherit", "the commands inherit the buffers")
        limit = min(self._owner._values.get("maxKernelBufferBindCount", LAST_INDEX + 1), LAST_INDEX + 1)
        if unsigned(index, "index") >= limit:
            control.violated("binding-index", f"index {index} of at most {limit} buffers")
        if unsigned(offset, "offset") >= buffer._region.nbytes:
            control.violated("binding-offset", f"offset {offset} of a buffer of {buffer._region.nbytes} bytes")
        if buffer._device is not self._owner._device:
            control.violated("device", "the buffer belongs to another device")
        self._command().arguments.buffers[index] = (_Weak(buffer), offset)

    def setThreadgroupMemoryLength_atIndex_(self, length: int, index: int) -> None:
        if unsigned(length, "length") % 16:
            control.violated("threadgroup-memory", f"{length} bytes")
        self._command().arguments.threadgroup[unsigned(index, "index")] = length

    def concurrentDispatchThreads_threadsPerThreadgroup_(self, grid: Any, group: Any) -> None:
        self._allow(k.MTLIndirectCommandTypeConcurrentDispatchThreads)
        self._command().sizes = size_of(grid, "threadsPerGrid"), size_of(group, "threadsPerThreadgroup")

    def concurrentDispatchThreadgroups_threadsPerThreadgroup_(self, groups: Any, group: Any) -> None:
        self._allow(k.MTLIndirectCommandTypeConcurrentDispatch)
        groups, group = size_of(groups, "threadgroupsPerGrid"), size_of(group, "threadsPerThreadgroup")
        self._command().sizes = MTLSize(*(a * b for a, b in zip(groups, group, strict=True))), group

    def setBarrier(self) -> None:
        self._command().barrier = True

    def clearBarrier(self) -> None:
        self._command().barrier = False

    def reset(self) -> None:
        self._owner._commands[self._index] = Command()

    def _allow(self, kind: int) -> None:
        if not self._owner._values.get("commandTypes", 0) & kind:
            control.violated("icb-type", f"a command of type {kind}")

    def _command(self) -> Command:
        return self._owner._commands[self._index]


class _Weak:
    """A buffer that an indirect command buffer refers to without keeping it alive."""

    def __init__(self, buffer: MTLBuffer) -> None:
        self._region = buffer._region

    def _usable(self, offset: int, nbytes: int, what: str) -> None:
        """The buffer is checked by the encoder that declares its use."""


def new_indirect(device: Any, descriptor: Any, count: int, options: int) -> MTLIndirectCommandBuffer:
    """Create an indirect command buffer as its descriptor says."""
    values = dict(instance(descriptor, MTLIndirectCommandBufferDescriptor, "descriptor")._values)
    check_options(device, unsigned(options, "options"))
    kinds = values.get("commandTypes", 0)
    if kinds & ~_DISPATCHES:
        control.refuse(f"indirect commands of types {kinds}")
    if not kinds or not unsigned(count, "maxCommandCount"):
        control.violated("icb-type", f"{count} commands of types {kinds}")
    return MTLIndirectCommandBuffer(device, values, count)


def execute(encoder: Any, commands: Any, extent: Any) -> list[Any]:
    """Return the operations of a range of commands, for an encoder that executes them."""
    instance(commands, MTLIndirectCommandBuffer, "indirectCommandBuffer")
    operations: list[Any] = []
    for index in commands._range(extent):
        command = commands._commands[index]
        if command.sizes is None:
            continue
        inherits = commands._values
        arguments = command.arguments.copy()
        if inherits.get("inheritPipelineState"):
            arguments.pipeline = encoder._arguments.pipeline
            if arguments.pipeline is not None and not arguments.pipeline._indirect:
                control.violated("icb-pipeline", f"the pipeline of {arguments.pipeline._kernel.name}")
        if inherits.get("inheritBuffers"):
            arguments.buffers = dict(encoder._arguments.buffers)
        dispatch = Dispatch(encoder.device(), arguments, *command.sizes)
        if not inherits.get("inheritBuffers"):
            for _, region, _, _ in dispatch.regions:
                if not encoder._is_resident(region):
                    detail = f"a buffer of {region.nbytes} bytes of command {index} has no useResource_usage_"
                    control.violated("icb-resident", detail)
        if command.barrier:
            operations.append(lambda current: current.barrier())
        operations.append(dispatch)
    return operations
