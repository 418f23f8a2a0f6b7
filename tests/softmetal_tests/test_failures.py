"""Failures that a test asks for: of calls, of command buffers, and interrupts."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "selector", ["newBufferWithLength_options_", "newHeapWithDescriptor_", "newCommandQueue", "newSharedEvent"]
)
def test_call_that_creates_returns_none(metal, selector):
    metal.control.fail(selector)
    arguments = {"newBufferWithLength_options_": (64, 0), "newHeapWithDescriptor_": (None,)}.get(selector, ())
    assert getattr(metal.device, selector)(*arguments) is None


def test_call_with_an_error_returns_it(metal):
    metal.control.fail("newLibraryWithSource_options_error_", after=1, code=2, text="the compiler crashed")
    compiled = metal.device.newLibraryWithSource_options_error_("kernel void f() {}", None, None)
    assert compiled[1] is None
    library, error = metal.device.newLibraryWithSource_options_error_("kernel void f() {}", None, None)
    assert library is None
    found = error.domain(), error.code(), error.localizedDescription()
    assert found == ("MTLLibraryErrorDomain", 2, "the compiler crashed")


def test_call_without_a_result_raises(metal):
    metal.control.fail("setSignaledValue_")
    event = metal.device.newSharedEvent()
    with pytest.raises(metal.objc.error, match="NSInternalInconsistencyException"):
        event.setSignaledValue_(1)
    event.setSignaledValue_(1)


def test_failure_that_stays(metal):
    metal.control.fail("newFence", sticky=True)
    assert [metal.device.newFence() for _ in range(2)] == [None, None]


def test_commit_that_fails_ends_its_command_buffer(metal):
    metal.control.fail("commit", code=3)
    error = metal.done(metal.queue.commandBuffer())
    assert error.code() == metal.Metal.MTLCommandBufferErrorPageFault


@pytest.mark.parametrize(("code", "text"), [(8, "Insufficient Memory"), (2, "Timeout"), (3, "Fault"), (11, "Removed")])
def test_command_buffer_ends_with_an_error(metal, code, text):
    buffer, event = metal.buffer(), metal.device.newSharedEvent()
    metal.control.fail_command_buffer(code, after=1)
    assert metal.done(metal.queue.commandBuffer()) is None
    commands = metal.queue.commandBuffer()
    metal.fill(commands, buffer)
    commands.encodeSignalEvent_value_(event, 1)
    error = metal.done(commands)
    assert (error.domain(), error.code()) == (metal.Metal.MTLCommandBufferErrorDomain, code)
    assert text in error.localizedDescription()
    assert commands.status() == metal.Metal.MTLCommandBufferStatusError
    assert (bytes(metal.values(buffer)), event.signaledValue()) == (bytes(64), 0)
    assert metal.done(metal.queue.commandBuffer()) is None


def test_interrupt_during_a_call_is_raised_after_it(metal):
    metal.control.interrupt("newSharedEvent", after=1)
    metal.device.newSharedEvent()
    with pytest.raises(KeyboardInterrupt):
        metal.device.newSharedEvent()
    assert metal.control.live("MTLSharedEvent") == 0


def test_interrupt_of_a_wait_is_raised_after_it(metal):
    commands = metal.queue.commandBuffer()
    metal.control.interrupt("waitUntilCompleted")
    commands.commit()
    with pytest.raises(KeyboardInterrupt):
        commands.waitUntilCompleted()
    assert commands.status() == metal.Metal.MTLCommandBufferStatusCompleted


def test_failure_of_one_class_only(metal):
    heap = metal.heap()
    metal.control.fail("MTLHeap newBufferWithLength_options_")
    assert metal.buffer() is not None
    assert heap.newBufferWithLength_options_(64, 0) is None
    assert metal.control.calls("MTLHeap newBufferWithLength_options_") == 1
    assert "MTLHeap newBufferWithLength_options_" not in metal.control.calls()


def test_memory_runs_out_at_a_limit(metal):
    metal.control.memory = metal.device.currentAllocatedSize() + 16384
    buffers = [metal.buffer(), metal.buffer()]
    assert [buffer is None for buffer in buffers] == [False, True]


def test_error_names_the_encoders(metal):
    descriptor = metal.Metal.MTLCommandBufferDescriptor.new()
    descriptor.setErrorOptions_(metal.Metal.MTLCommandBufferErrorOptionEncoderExecutionStatus)
    commands = metal.queue.commandBufferWithDescriptor_(descriptor)
    metal.fill(commands, metal.buffer())
    encoder = metal.compute("diverge", commands)
    encoder.setLabel_("sort")
    encoder.dispatchThreads_threadsPerThreadgroup_((4, 1, 1), (4, 1, 1))
    encoder.endEncoding()
    metal.fill(commands, metal.buffer())
    infos = metal.done(commands).userInfo()[metal.Metal.MTLCommandBufferEncoderInfoErrorKey]
    names = "Completed", "Faulted", "Pending"
    states = [getattr(metal.Metal, f"MTLCommandEncoderErrorState{name}") for name in names]
    assert [(info.label(), info.errorState()) for info in infos] == list(zip(("", "sort", ""), states, strict=True))
    metal.control.violations.clear()


def test_calls_are_counted(metal):
    before = metal.control.calls("newFence")
    metal.device.newFence()
    assert metal.control.calls("newFence") == before + 1
    assert metal.control.calls()["newFence"] == before + 1
