"""Each rule of the stand-in is enforced: a scene for each breaks it."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from contextlib import suppress

import pytest
from softmetal.control import control
from softmetal.rules import RULES, MetalRuleViolation
from support.software_metal import installed

SCENES = {}
UNTRACKED = 1 << 8
PRIVATE = 2 << 4
INTEL = {"machine": "intel"}
TWO = {"machine": "two"}


def breaks(key, machine=None):
    """Add a scene that breaks a rule."""

    def add(function):
        SCENES[f"{key}: {function.__name__}"] = (key, function, machine or {})
        return function

    return add


# processes and pools


@breaks("pool")
def command_buffer_on_a_thread_without_a_pool(metal):
    thread = threading.Thread(target=lambda: attempt(metal.queue.commandBuffer))
    thread.start()
    thread.join()


@breaks("fork")
def call_in_a_child(metal):
    if (child := os.fork()) == 0:
        try:
            metal.device.name()
        except MetalRuleViolation as error:
            os._exit(7 if error.key == "fork" else 1)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7:
        control.note_violation("fork", "as the child reports")


@breaks("over-release")
def buffer_that_is_released_twice(metal):
    control.over_retains = True
    buffer = metal.buffer()
    buffer.release()
    buffer.release()


@breaks("over-release")
def buffer_that_pyobjc_has_taken_over(metal):
    metal.buffer().release()


@breaks("nil")
def heap_without_a_descriptor(metal):
    metal.device.newHeapWithDescriptor_(None)


@breaks("nil")
def completed_handler_of_nothing(metal):
    metal.queue.commandBuffer().addCompletedHandler_(None)


@breaks("device", TWO)
def copy_to_a_buffer_of_another_device(metal):
    other = metal.Metal.MTLCopyAllDevices()[1]
    encoder = metal.queue.commandBuffer().blitCommandEncoder()
    try:
        encoder.fillBuffer_range_value_(other.newBufferWithLength_options_(64, 0), (0, 64), 0)
    finally:
        encoder.endEncoding()


@breaks("device", TWO)
def pipeline_of_a_function_of_another_device(metal):
    other = metal.Metal.MTLCopyAllDevices()[1]
    library, _ = other.newLibraryWithSource_options_error_("kernel void f() {}", None, None)
    metal.device.newComputePipelineStateWithFunction_error_(library.newFunctionWithName_("f"), None)


@breaks("device", TWO)
def plain_event_of_another_device(metal):
    event = metal.Metal.MTLCopyAllDevices()[1].newEvent()
    metal.queue.commandBuffer().encodeSignalEvent_value_(event, 1)


# resources


@breaks("zero-size")
def buffer_of_no_bytes(metal):
    metal.buffer(0)


@breaks("zero-size")
def heap_of_no_bytes(metal):
    metal.heap(0)


@breaks("zero-size")
def buffer_of_no_bytes_in_a_heap(metal):
    metal.heap().newBufferWithLength_options_(0, 0)


@breaks("max-length")
def buffer_longer_than_the_device_allows(metal):
    metal.buffer(metal.device.maxBufferLength() + 1)


@breaks("options")
def unknown_option(metal):
    metal.buffer(64, 1 << 12)


@breaks("options")
def unknown_language_version(metal):
    options = metal.Metal.MTLCompileOptions.new()
    options.setLanguageVersion_(7)
    metal.device.newLibraryWithSource_options_error_("kernel void f() {}", options, None)


@breaks("managed")
def managed_buffer_with_unified_memory(metal):
    metal.buffer(64, metal.Metal.MTLResourceStorageModeManaged)


@breaks("memoryless")
def memoryless_buffer(metal):
    metal.buffer(64, metal.Metal.MTLResourceStorageModeMemoryless)


@breaks("contents")
def contents_of_a_private_buffer(metal):
    metal.buffer(64, PRIVATE).contents()


@breaks("no-copy")
def borrowed_memory_that_begins_inside_a_page(metal):
    memory = (ctypes.c_char * 65536)()
    inside = (-ctypes.addressof(memory)) % 16384 + 64
    view = memoryview(memory).cast("B")[inside:]
    metal.device.newBufferWithBytesNoCopy_length_options_deallocator_(view, 16384, 0, None)


@breaks("no-copy")
def borrowed_memory_that_is_private(metal):
    memory = mmap.mmap(-1, 16384)
    metal.device.newBufferWithBytesNoCopy_length_options_deallocator_(memory, 16384, PRIVATE, None)


@breaks("dead-memory")
def view_of_a_buffer_that_was_released(metal):
    view = metal.buffer().contents().as_buffer(64)
    assert view[0] == 0  # the memory is mapped still
    metal.control.check()


@breaks("dead-memory")
def contents_used_after_the_buffer(metal):
    metal.buffer().contents().as_buffer(64)  # the buffer is alive until contents() has returned
    kept = metal.buffer().contents()
    kept.as_buffer(64)


@breaks("synchronize")
def synchronized_shared_buffer(metal):
    encoder = metal.queue.commandBuffer().blitCommandEncoder()
    try:
        encoder.synchronizeResource_(metal.buffer())
    finally:
        encoder.endEncoding()


@breaks("synchronize")
def modified_range_of_a_shared_buffer(metal):
    metal.buffer().didModifyRange_((0, 4))


# heaps


@breaks("heap-storage", INTEL)
def shared_heap_without_unified_memory(metal):
    metal.heap(storageMode=0)


@breaks("heap-mode")
def private_buffer_in_a_shared_heap(metal):
    metal.heap().newBufferWithLength_options_(64, PRIVATE)


@breaks("heap-mode")
def tracked_buffer_in_an_untracked_heap(metal):
    metal.heap().newBufferWithLength_options_(64, 2 << 8)


@breaks("heap-type")
def placement_heap_without_an_offset(metal):
    metal.heap(type=1).newBufferWithLength_options_(64, 0)


@breaks("heap-type")
def automatic_heap_with_an_offset(metal):
    metal.heap().newBufferWithLength_options_offset_(64, 0, 0)


@breaks("heap-offset")
def offset_that_is_not_aligned(metal):
    metal.heap(type=1).newBufferWithLength_options_offset_(64, 0, 128)


@breaks("heap-offset")
def buffer_that_ends_after_its_heap(metal):
    heap = metal.heap(16384, type=1)
    heap.newBufferWithLength_options_offset_(512, 0, 16384 - 256)


@breaks("alignment")
def alignment_that_is_no_power_of_two(metal):
    metal.heap().maxAvailableSizeWithAlignment_(24)


@breaks("aliasable")
def aliasable_buffer_without_a_heap(metal):
    metal.buffer().makeAliasable()


@breaks("used-aliasable")
def aliasable_buffer_that_is_used(metal):
    buffer = metal.heap().newBufferWithLength_options_(64, 0)
    buffer.makeAliasable()
    metal.fill(metal.queue.commandBuffer(), buffer)


@breaks("purged")
def volatile_buffer_that_is_used(metal):
    buffer = metal.buffer()
    buffer.setPurgeableState_(metal.Metal.MTLPurgeableStateVolatile)
    metal.fill(metal.queue.commandBuffer(), buffer)


@breaks("purged")
def buffer_of_an_empty_heap_that_is_used(metal):
    heap = metal.heap()
    buffer = heap.newBufferWithLength_options_(64, 0)
    heap.setPurgeableState_(metal.Metal.MTLPurgeableStateEmpty)
    metal.fill(metal.queue.commandBuffer(), buffer)


# queues and command buffers


@breaks("queue-size")
def queue_of_no_command_buffers(metal):
    metal.device.newCommandQueueWithMaxCommandBufferCount_(0)


@breaks("queue-full")
def more_command_buffers_than_a_queue_has(metal):
    kept = [metal.queue.commandBuffer() for _ in range(64)]
    assert len(kept) == 64
    metal.queue.commandBuffer()


@breaks("commit-once")
def second_commit(metal):
    commands = metal.queue.commandBuffer()
    commands.commit()
    commands.commit()


@breaks("enqueue")
def enqueue_after_commit(metal):
    commands = metal.queue.commandBuffer()
    commands.commit()
    commands.enqueue()


@breaks("committed")
def encoder_after_commit(metal):
    commands = metal.queue.commandBuffer()
    commands.commit()
    commands.blitCommandEncoder()


@breaks("committed")
def event_after_commit(metal):
    commands = metal.queue.commandBuffer()
    commands.commit()
    commands.encodeSignalEvent_value_(metal.device.newSharedEvent(), 1)


@breaks("handler")
def handler_after_commit(metal):
    commands = metal.queue.commandBuffer()
    commands.commit()
    commands.addCompletedHandler_(print)


@breaks("wait-uncommitted")
def wait_for_what_was_not_committed(metal):
    metal.queue.commandBuffer().waitUntilCompleted()


@breaks("wait-in-handler")
def handler_that_waits_for_its_command_buffer(metal):
    commands = metal.queue.commandBuffer()
    commands.addCompletedHandler_(lambda done: attempt(done.waitUntilCompleted))
    metal.done(commands)


@breaks("block")
def handler_that_raises(metal):
    commands = metal.queue.commandBuffer()
    commands.addCompletedHandler_(lambda _: 1 / 0)
    metal.done(commands)
    assert metal.done(metal.queue.commandBuffer()) is None  # later handlers are called


@breaks("unretained")
def buffer_released_before_its_command_buffer_completes(metal):
    commands = metal.queue.commandBufferWithUnretainedReferences()
    buffer = metal.buffer()
    metal.fill(commands, buffer)
    with metal.control.held():
        commands.commit()
        del buffer
    commands.waitUntilCompleted()
    assert commands.error().code() == metal.Metal.MTLCommandBufferErrorInvalidResource


# encoders


@breaks("one-encoder")
def second_encoder(metal):
    commands = metal.queue.commandBuffer()
    encoder = commands.blitCommandEncoder()
    try:
        commands.computeCommandEncoder()
    finally:
        encoder.endEncoding()


@breaks("open-encoder")
def commit_with_an_open_encoder(metal):
    commands = metal.queue.commandBuffer()
    encoder = commands.blitCommandEncoder()
    try:
        commands.commit()
    finally:
        encoder.endEncoding()


@breaks("ended")
def command_after_the_end(metal):
    encoder = metal.queue.commandBuffer().blitCommandEncoder()
    encoder.endEncoding()
    encoder.fillBuffer_range_value_(metal.buffer(), (0, 64), 0)


@breaks("ended")
def second_end(metal):
    encoder = metal.queue.commandBuffer().blitCommandEncoder()
    encoder.endEncoding()
    encoder.endEncoding()


@breaks("lost-encoder")
def encoder_that_is_released_open(metal):
    with metal.objc.autorelease_pool():
        metal.queue.commandBuffer().blitCommandEncoder()


class Slow:
    """A number that another thread looks up while it is passed to a call."""

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    def __index__(self):
        thread = threading.Thread(target=attempt, args=[self.meanwhile])
        thread.start()
        thread.join()
        return 64


@breaks("threads")
def two_threads_in_one_encoder(metal):
    buffer, encoder = metal.buffer(), metal.queue.commandBuffer().blitCommandEncoder()
    slow = Slow(lambda: encoder.fillBuffer_range_value_(buffer, (0, 64), 0))
    encoder.fillBuffer_range_value_(buffer, (0, slow), 0)
    encoder.endEncoding()


def blit(metal, encode):
    encoder = metal.queue.commandBuffer().blitCommandEncoder()
    try:
        encode(encoder)
    finally:
        encoder.endEncoding()


def copied(metal, source_offset, destination_offset, size):
    buffers = metal.buffer(), metal.buffer()
    places = buffers[0], source_offset, buffers[1], destination_offset, size
    blit(metal, lambda encoder: encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(*places))


@breaks("range")
def copy_beyond_the_end(metal):
    copied(metal, 32, 0, 36)


@breaks("range")
def fill_of_nothing(metal):
    blit(metal, lambda encoder: encoder.fillBuffer_range_value_(metal.buffer(), (0, 0), 0))


@breaks("range")
def view_longer_than_the_buffer(metal):
    metal.buffer().contents().as_buffer(65)


@breaks("multiple-of-4")
def copy_from_an_odd_offset(metal):
    copied(metal, 2, 0, 4)


@breaks("multiple-of-4")
def copy_of_an_odd_size(metal):
    copied(metal, 0, 0, 7)


@breaks("multiple-of-4")
def fill_of_an_odd_size(metal):
    blit(metal, lambda encoder: encoder.fillBuffer_range_value_(metal.buffer(), (0, 7), 0))


@breaks("fill-value")
def fill_with_a_negative_value(metal):
    blit(metal, lambda encoder: encoder.fillBuffer_range_value_(metal.buffer(), (0, 8), -1))


@breaks("overlap")
def copy_onto_itself(metal):
    buffer = metal.buffer()
    place = buffer, 0, buffer, 16, 32
    blit(metal, lambda encoder: encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(*place))


@breaks("hazard")
def untracked_buffer_in_two_passes(metal):
    buffer, commands = metal.buffer(64, UNTRACKED), metal.queue.commandBuffer()
    metal.fill(commands, buffer)
    metal.copy(commands, buffer, metal.buffer())
    assert "conflicts" in metal.done(commands).localizedDescription()


@breaks("hazard")
def reused_range_of_an_untracked_heap_on_two_queues(metal):
    heap, queues = metal.heap(16384), [metal.queue, metal.device.newCommandQueue()]
    for queue in queues:
        commands = queue.commandBuffer()
        metal.fill(commands, heap.newBufferWithLength_options_(16384, 0))
        commands.commit()
        record = commands._record
        with record.changed:  # nothing that Metal's API offers observes the end of the first one
            assert record.changed.wait_for(lambda record=record: record.completed_done, 10)


@breaks("hazard")
def dispatches_of_a_concurrent_encoder(metal):
    commands = metal.queue.commandBuffer()
    encoder = commands.computeCommandEncoderWithDispatchType_(metal.Metal.MTLDispatchTypeConcurrent)
    encoder.setComputePipelineState_(metal.pipeline("count"))
    encoder.setBuffer_offset_atIndex_(metal.buffer(), 0, 0)
    for _ in range(2):
        encoder.dispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    metal.done(commands)


@breaks("fence")
def fence_that_is_waited_for_after_its_update(metal):
    fence = metal.device.newFence()

    def encode(encoder):
        encoder.updateFence_(fence)
        encoder.waitForFence_(fence)

    blit(metal, encode)


# events


@breaks("event-open")
def event_inside_a_pass(metal):
    commands = metal.queue.commandBuffer()
    encoder = commands.blitCommandEncoder()
    try:
        commands.encodeWaitForEvent_value_(metal.device.newSharedEvent(), 1)
    finally:
        encoder.endEncoding()


@breaks("event-grows")
def lower_value_by_the_cpu(metal):
    event = metal.device.newSharedEvent()
    event.setSignaledValue_(2)
    event.setSignaledValue_(1)


@breaks("event-grows")
def lower_value_by_the_gpu(metal):
    event, commands = metal.device.newSharedEvent(), metal.queue.commandBuffer()
    event.setSignaledValue_(2)
    commands.encodeSignalEvent_value_(event, 1)
    assert metal.done(commands) is None
    assert event.signaledValue() == 2


# compute


def encoded(metal, encode, name="add"):
    encoder = metal.compute(name)
    try:
        encode(encoder)
    finally:
        encoder.endEncoding()


def dispatch(grid=(4, 1, 1), group=(4, 1, 1)):
    return lambda encoder: encoder.dispatchThreads_threadsPerThreadgroup_(grid, group)


@breaks("pipeline")
def dispatch_without_a_pipeline(metal):
    encoder = metal.queue.commandBuffer().computeCommandEncoder()
    try:
        dispatch()(encoder)
    finally:
        encoder.endEncoding()


@breaks("binding-index")
def buffer_at_index_31(metal):
    encoded(metal, lambda encoder: encoder.setBuffer_offset_atIndex_(metal.buffer(), 0, 31))


@breaks("binding")
def argument_that_is_not_bound(metal):
    def encode(encoder):
        encoder.setBuffer_offset_atIndex_(None, 0, 2)
        dispatch()(encoder)

    encoded(metal, encode)


@breaks("binding-offset")
def binding_after_the_end(metal):
    encoded(metal, lambda encoder: encoder.setBuffer_offset_atIndex_(metal.buffer(), 64, 0))


@breaks("binding-offset")
def binding_that_is_not_aligned(metal):
    def encode(encoder):
        encoder.setBuffer_offset_atIndex_(metal.buffer(), 2, 0)
        dispatch()(encoder)

    encoded(metal, encode)


@breaks("binding-size")
def data_that_is_too_short(metal):
    def encode(encoder):
        encoder.setBytes_length_atIndex_(b"ab", 2, 1)
        dispatch()(encoder)

    encoded(metal, encode)


@breaks("bytes")
def too_many_bytes(metal):
    encoded(metal, lambda encoder: encoder.setBytes_length_atIndex_(bytes(4097), 4097, 1))


@breaks("bytes")
def bytes_that_a_kernel_writes(metal):
    def encode(encoder):
        encoder.setBytes_length_atIndex_(bytes(16), 16, 0)
        dispatch()(encoder)

    encoded(metal, encode)


@breaks("kernel-range")
def kernel_that_writes_behind_its_buffer(metal):
    commands = metal.queue.commandBuffer()
    encoder = metal.compute("add", commands)
    encoder.setBytes_length_atIndex_(struct.pack("f", float("nan")), 4, 1)
    dispatch((20, 1, 1))(encoder)
    encoder.endEncoding()
    assert metal.done(commands).code() == metal.Metal.MTLCommandBufferErrorPageFault


@breaks("threadgroup-memory")
def threadgroup_memory_of_24_bytes(metal):
    encoded(metal, lambda encoder: encoder.setThreadgroupMemoryLength_atIndex_(24, 0))


@breaks("threadgroup-memory")
def threadgroup_memory_beyond_the_limit(metal):
    def encode(encoder):
        encoder.setThreadgroupMemoryLength_atIndex_(32768, 0)
        encoder.setThreadgroupMemoryLength_atIndex_(16, 1)
        dispatch()(encoder)

    encoded(metal, encode)


@breaks("threadgroup-size")
def group_of_too_many_threads(metal):
    encoded(metal, dispatch((2048, 1, 1), (2048, 1, 1)))


@breaks("threadgroup-size")
def group_of_no_threads(metal):
    encoded(metal, dispatch((4, 1, 1), (0, 1, 1)))


@breaks("grid")
def grid_of_no_threads(metal):
    encoded(metal, dispatch((4, 0, 1)))


@breaks("nonuniform", {"families": ("Common1", "Apple3")})
def nonuniform_grid_on_an_old_device(metal):
    encoded(metal, dispatch((5, 1, 1)))


@breaks("barrier")
def barrier_that_one_thread_reaches(metal):
    commands = metal.queue.commandBuffer()
    encoder = metal.compute("diverge", commands)
    dispatch()(encoder)
    encoder.endEncoding()
    metal.done(commands)


# indirect command buffers


def indirect(metal, count=2, **properties):
    descriptor = metal.Metal.MTLIndirectCommandBufferDescriptor.new()
    kinds = metal.Metal.MTLIndirectCommandTypeConcurrentDispatchThreads
    for key, value in {"commandTypes": kinds, **properties}.items():
        getattr(descriptor, f"set{key[0].upper()}{key[1:]}_")(value)
    create = metal.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
    return create(descriptor, count, 0)


@breaks("icb-type")
def indirect_command_of_another_type(metal):
    command = indirect(metal).indirectComputeCommandAtIndex_(0)
    command.concurrentDispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))


@breaks("icb-range")
def indirect_command_after_the_last(metal):
    indirect(metal).indirectComputeCommandAtIndex_(2)


@breaks("icb-inherit")
def buffer_of_a_command_that_inherits_buffers(metal):
    command = indirect(metal, inheritBuffers=True).indirectComputeCommandAtIndex_(0)
    command.setKernelBuffer_offset_atIndex_(metal.buffer(), 0, 0)


@breaks("icb-pipeline")
def pipeline_without_support_for_indirect_commands(metal):
    indirect(metal).indirectComputeCommandAtIndex_(0).setComputePipelineState_(metal.pipeline("count"))


@breaks("icb-resident")
def buffer_of_an_indirect_command_that_is_not_declared(metal):
    commands, buffer = indirect(metal), metal.buffer()
    command = commands.indirectComputeCommandAtIndex_(0)
    command.setComputePipelineState_(metal.pipeline("count", supportIndirectCommandBuffers=True))
    command.setKernelBuffer_offset_atIndex_(buffer, 0, 0)
    command.concurrentDispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoded(metal, lambda encoder: encoder.executeCommandsInBuffer_withRange_(commands, (0, 1)))


# counters


def samples(metal, mode=0):
    descriptor = metal.Metal.MTLCounterSampleBufferDescriptor.new()
    descriptor.setCounterSet_(metal.device.counterSets()[0])
    descriptor.setSampleCount_(2)
    descriptor.setStorageMode_(mode)
    return metal.device.newCounterSampleBufferWithDescriptor_error_(descriptor, None)[0]


@breaks("counter-point")
def samples_between_the_commands_of_a_pass(metal):
    memory = samples(metal)
    blit(metal, lambda encoder: encoder.sampleCountersInBuffer_atSampleIndex_withBarrier_(memory, 0, False))


@breaks("counter-range")
def samples_after_the_last(metal):
    samples(metal).resolveCounterRange_((1, 2))


@breaks("counter-storage")
def samples_in_private_storage(metal):
    samples(metal, metal.Metal.MTLStorageModePrivate).resolveCounterRange_((0, 2))


def attempt(function):
    """Call a function that breaks a rule on a thread of its own."""
    with suppress(MetalRuleViolation):  # it is recorded
        function()


@pytest.mark.parametrize("name", SCENES)
def test_rule_is_enforced(name, metal):
    key, scene, _ = SCENES[name]
    with suppress(MetalRuleViolation):
        scene(metal)
    assert all(RULES[key].source in str(violation) for violation in control.violations)
    found = [violation.key for violation in control.violations]
    control.violations.clear()
    assert found == [key]


@pytest.fixture
def machine(request):
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    return SCENES[parameters["name"]][2] if "name" in parameters else {}


def test_each_rule_has_a_scene():
    compiled = {"msl", "address-space"}  # the compiler reports them, see test_msl.py
    assert {key for key, _, _ in SCENES.values()} == RULES.keys() - compiled


def test_violation_that_the_program_ignores_is_found_at_the_end():
    def ignore():
        with installed():
            import Metal

            device = Metal.MTLCreateSystemDefaultDevice()
            attempt(lambda: device.newBufferWithLength_options_(0, 0))

    with pytest.raises(MetalRuleViolation, match="at least one byte"):
        ignore()
