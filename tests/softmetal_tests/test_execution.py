"""Queues execute in order on threads of their own, wait for events, and tell when they are done."""

from __future__ import annotations

import importlib
import struct
import threading

import pytest
from softmetal.rules import MetalRuleViolation
from support.software_metal import installed

STATUS = ("NotEnqueued", "Enqueued", "Committed", "Scheduled", "Completed", "Error")


def test_statuses_in_order(metal):
    commands = metal.queue.commandBuffer()
    expected = [getattr(metal.Metal, f"MTLCommandBufferStatus{name}") for name in STATUS]
    seen = [commands.status()]
    commands.enqueue()
    seen.append(commands.status())
    scheduled = threading.Event()
    commands.addScheduledHandler_(lambda _: scheduled.set())
    with metal.control.held():
        commands.commit()
        seen.append(commands.status())
    commands.waitUntilScheduled()
    assert scheduled.is_set()
    commands.waitUntilCompleted()
    seen += [3, commands.status()]
    assert seen == expected[:5]


def test_copies_and_fills(metal):
    source, destination = metal.buffer(), metal.buffer()
    metal.values(source)[:] = memoryview(struct.pack("16I", *range(16))).cast("I")
    commands = metal.queue.commandBuffer()
    metal.copy(commands, source, destination)
    metal.fill(commands, destination, 0x7F, (4, 8))
    assert metal.done(commands) is None
    assert list(metal.values(destination)) == [0, 0x7F7F7F7F, 0x7F7F7F7F, *range(3, 16)]


@pytest.mark.parametrize("value", [128, 255, -129])
def test_value_of_a_fill_is_a_char(metal, value):
    with pytest.raises(ValueError, match="depythonifying 'char'"):
        metal.fill(metal.queue.commandBuffer(), metal.buffer(), value)


def test_nothing_executes_before_commit_and_while_the_gate_is_held(metal):
    buffer, commands = metal.buffer(), metal.queue.commandBuffer()
    metal.fill(commands, buffer)
    with metal.control.held():
        commands.commit()
        assert bytes(metal.values(buffer)) == bytes(64)
        assert commands.GPUEndTime() == 0.0
    commands.waitUntilCompleted()
    assert bytes(metal.values(buffer)) == b"\1" * 64


def test_gate_lets_single_command_buffers_pass(metal):
    event = metal.device.newSharedEvent()
    with metal.control.held():
        for value in (1, 2, 3):
            commands = metal.queue.commandBuffer()
            commands.encodeSignalEvent_value_(event, value)
            commands.commit()
        metal.control.step(2)
        assert event.waitUntilSignaledValue_timeoutMS_(2, 10_000)
        assert event.signaledValue() == 2
    commands.waitUntilCompleted()
    assert event.signaledValue() == 3


def test_order_is_that_of_enqueue(metal):
    event = metal.device.newSharedEvent()
    first, second = metal.queue.commandBuffer(), metal.queue.commandBuffer()
    first.enqueue()
    second.enqueue()
    seen = []
    for commands, name in ((first, "first"), (second, "second")):
        commands.addCompletedHandler_(lambda _, name=name: seen.append(name))
    second.encodeSignalEvent_value_(event, 2)
    second.commit()
    assert event.signaledValue() == 0
    first.commit()
    second.waitUntilCompleted()
    assert seen == ["first", "second"]


def test_handlers_run_on_another_thread_before_the_wait_ends(metal):
    commands, seen = metal.queue.commandBuffer(), []
    commands.addCompletedHandler_(lambda done: seen.append((threading.get_ident(), done.status(), done is commands)))
    metal.done(commands)
    [(thread, status, is_same)] = seen
    assert thread != threading.get_ident()
    assert (status, is_same) == (metal.Metal.MTLCommandBufferStatusCompleted, True)


def test_late_handlers_find_the_modules():
    seen = []
    with installed() as control:
        import Metal
        import objc

        control.latency = 0.1
        with objc.autorelease_pool():
            commands = Metal.MTLCreateSystemDefaultDevice().newCommandQueue().commandBuffer()
            commands.addCompletedHandler_(lambda _: seen.append(importlib.import_module("objc").__name__))
            commands.commit()
            del commands
    assert seen == ["objc"]


def test_queue_waits_for_an_event_of_another_queue(metal):
    other, event = metal.device.newCommandQueue(), metal.device.newSharedEvent()
    first, second = metal.buffer(), metal.buffer()
    waiting = metal.queue.commandBuffer()
    waiting.encodeWaitForEvent_value_(event, 1)
    metal.copy(waiting, first, second)
    waiting.commit()
    signalling = other.commandBuffer()
    metal.fill(signalling, first, 7)
    signalling.encodeSignalEvent_value_(event, 1)
    signalling.commit()
    waiting.waitUntilCompleted()
    assert bytes(metal.values(second)) == b"\7" * 64


def test_cpu_signals_what_a_queue_waits_for(metal):
    event, commands = metal.device.newSharedEvent(), metal.queue.commandBuffer()
    commands.encodeWaitForEvent_value_(event, 5)
    commands.commit()
    assert commands.status() < metal.Metal.MTLCommandBufferStatusCompleted
    event.setSignaledValue_(6)
    commands.waitUntilCompleted()
    assert commands.error() is None


def test_wait_that_no_event_ends_is_a_timeout_of_the_gpu(metal):
    metal.control.event_timeout = 0.01
    commands = metal.queue.commandBuffer()
    commands.encodeWaitForEvent_value_(metal.device.newSharedEvent(), 1)
    error = metal.done(commands)
    assert (error.domain(), error.code()) == ("MTLCommandBufferErrorDomain", 2)
    assert "Timeout" in error.localizedDescription()


def test_notifications_of_a_listener(metal):
    event, listener = metal.device.newSharedEvent(), metal.Metal.MTLSharedEventListener.alloc().init()
    seen: list[tuple[int, int]] = []
    both = threading.Semaphore(0)

    def note(reached, value):
        assert reached is event
        seen.append((threading.get_ident(), value))
        both.release()

    event.notifyListener_atValue_block_(listener, 2, note)
    event.setSignaledValue_(3)
    assert both.acquire(timeout=10)
    event.notifyListener_atValue_block_(listener, 1, note)  # reached already
    assert both.acquire(timeout=10)
    assert [value for _, value in seen] == [3, 3]
    assert threading.get_ident() not in {thread for thread, _ in seen}


def test_wait_of_the_cpu_for_an_event_has_a_limit(metal):
    assert not metal.device.newSharedEvent().waitUntilSignaledValue_timeoutMS_(1, 5)


def test_command_buffer_waits_for_a_free_place(metal):
    queue = metal.device.newCommandQueueWithMaxCommandBufferCount_(1)
    metal.control.hold()
    queue.commandBuffer().commit()
    got = threading.Event()

    def take():
        with metal.objc.autorelease_pool():
            queue.commandBuffer()
            got.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not got.is_set()
    metal.control.release()
    thread.join(10)
    assert got.is_set()


def test_untracked_buffer_is_used_in_passes_that_a_fence_orders(metal):
    buffer, fence = metal.buffer(64, 1 << 8), metal.device.newFence()
    commands = metal.queue.commandBuffer()
    first = commands.blitCommandEncoder()
    first.fillBuffer_range_value_(buffer, (0, 64), 1)
    first.updateFence_(fence)
    first.endEncoding()
    second = commands.blitCommandEncoder()
    second.waitForFence_(fence)
    second.fillBuffer_range_value_(buffer, (0, 64), 2)
    second.endEncoding()
    assert metal.done(commands) is None


def signalled(metal, event):
    commands = metal.queue.commandBuffer()
    commands.encodeSignalEvent_value_(event, 1)
    return commands


@pytest.mark.parametrize("order", ["event", "cpu wait", "cpu read", "handler"])
def test_untracked_buffer_is_used_in_command_buffers_that_something_orders(metal, order):
    buffer, event = metal.buffer(64, 1 << 8), metal.device.newSharedEvent()
    first = signalled(metal, event)
    metal.fill(first, buffer, 1)
    first.encodeSignalEvent_value_(event, 2)
    seen = threading.Event()
    if order == "handler":
        first.addCompletedHandler_(lambda _: seen.set())
    first.commit()
    second = metal.device.newCommandQueue().commandBuffer()
    if order == "event":
        second.encodeWaitForEvent_value_(event, 2)
    elif order == "cpu wait":
        first.waitUntilCompleted()
    elif order == "handler":
        assert seen.wait(10)
    else:
        assert event.waitUntilSignaledValue_timeoutMS_(2, 10_000)
    metal.fill(second, buffer, 2)
    assert metal.done(second) is None


def test_disjoint_ranges_of_an_untracked_buffer_need_no_order(metal):
    buffer, commands = metal.buffer(64, 1 << 8), metal.queue.commandBuffer()
    metal.fill(commands, buffer, 1, (0, 32))
    metal.fill(commands, buffer, 2, (32, 32))
    assert metal.done(commands) is None


def test_event_that_does_not_cover_the_pass_is_no_order(metal):
    buffer, event = metal.buffer(64, 1 << 8), metal.device.newSharedEvent()
    commands = signalled(metal, event)  # before the pass
    metal.fill(commands, buffer)
    commands.encodeWaitForEvent_value_(event, 1)
    metal.fill(commands, buffer)
    assert "Rule" in metal.done(commands).localizedDescription()
    with pytest.raises(MetalRuleViolation, match="conflicts"):
        metal.control.check()
    metal.control.violations.clear()


def test_times_are_in_order(metal):
    commands = metal.queue.commandBuffer()
    metal.fill(commands, metal.buffer())
    metal.done(commands)
    times = [commands.kernelStartTime(), commands.kernelEndTime(), commands.GPUStartTime(), commands.GPUEndTime()]
    assert times == sorted(times)
    assert times[0] > 0


def test_latency_delays_each_command_buffer(metal):
    metal.control.latency = 0.02
    commands = metal.queue.commandBuffer()
    metal.done(commands)
    assert commands.kernelEndTime() - commands.kernelStartTime() >= 0.02


def test_time_stamps_of_passes(metal):
    names = metal.Metal
    assert metal.device.supportsCounterSampling_(names.MTLCounterSamplingPointAtStageBoundary)
    descriptor = names.MTLCounterSampleBufferDescriptor.new()
    descriptor.setCounterSet_(metal.device.counterSets()[0])
    descriptor.setSampleCount_(2)
    samples, error = metal.device.newCounterSampleBufferWithDescriptor_error_(descriptor, None)
    assert error is None
    taken = names.MTLBlitPassDescriptor.blitPassDescriptor()
    attachment = taken.sampleBufferAttachments().objectAtIndexedSubscript_(0)
    attachment.setSampleBuffer_(samples)
    attachment.setStartOfEncoderSampleIndex_(0)
    attachment.setEndOfEncoderSampleIndex_(1)
    commands = metal.queue.commandBuffer()
    encoder = commands.blitCommandEncoderWithDescriptor_(taken)
    encoder.fillBuffer_range_value_(metal.buffer(), (0, 64), 1)
    encoder.endEncoding()
    cpu, gpu = metal.device.sampleTimestamps_gpuTimestamp_(None, None)
    assert metal.done(commands) is None
    start, end = struct.unpack("<2Q", samples.resolveCounterRange_((0, 2)))
    assert cpu <= gpu <= start <= end


def test_indirect_commands_execute_often(metal):
    names = metal.Metal
    descriptor = names.MTLIndirectCommandBufferDescriptor.new()
    descriptor.setCommandTypes_(names.MTLIndirectCommandTypeConcurrentDispatchThreads)
    create = metal.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
    table, buffer = create(descriptor, 3, 0), metal.buffer()
    for index in (0, 2):  # 1 is empty
        command = table.indirectComputeCommandAtIndex_(index)
        command.setComputePipelineState_(metal.pipeline("count", supportIndirectCommandBuffers=True))
        command.setKernelBuffer_offset_atIndex_(buffer, 0, 0)
        command.setBarrier()
        command.concurrentDispatchThreads_threadsPerThreadgroup_((5, 1, 1), (5, 1, 1))
    for _ in range(2):
        commands = metal.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.useResource_usage_(buffer, names.MTLResourceUsageRead | names.MTLResourceUsageWrite)
        encoder.executeCommandsInBuffer_withRange_(table, (0, 3))
        encoder.endEncoding()
        assert metal.done(commands) is None
    assert metal.values(buffer)[0] == 20
