"""A failure of any call of Metal, at any point of a long program, is reported once, and nothing is lost."""

from __future__ import annotations

import gc
import threading
import warnings

import pytest
from support.metal_scenario import KEPT, Scenario

from forebay.backends.metal import discovery
from forebay.errors import DeviceError, ForebayWarning, OutOfMemory


def counted(mac) -> dict[str, int]:
    """Return how often a run without a failure calls each selector."""
    before = mac.calls()
    Scenario().run()
    return {name: number - before.get(name, 0) for name, number in mac.calls().items() if number > before.get(name, 0)}


def live(mac) -> dict[str, int]:
    """Return how many objects exist, when the threads of Metal have dropped theirs."""
    found: dict[str, int] = {}
    for _ in range(200):
        gc.collect()
        before, found = found, {name: number for name, number in mac.live().items() if name not in KEPT}
        if not found or (found == before and _ > 20):
            break
        threading.Event().wait(0.001)
    return found


def test_run_without_a_failure_leaks_nothing(mac):
    Scenario().run()
    before = live(mac)
    expected = Scenario().run()
    assert expected.failures == []
    assert len(expected.read) == 24576
    del expected
    assert live(mac) == before


ALTERNATIVES = {  # which Metal offers: the default device, automatic heaps
    "MTLCopyAllDevices",
    "isLowPower",
    "newHeapWithDescriptor_",
    "newBufferWithLength_options_offset_",
}
NUMBER_VARIES = {
    "commandBufferWithUnretainedReferences",
    "addCompletedHandler_",
    "commit",
    "status",
    "error",
    "encodeSignalEvent_value_",
}
NUMBER_VARIES |= {"waitUntilSignaledValue_timeoutMS_", "encodeWaitForEvent_value_", "signaledValue", "endEncoding"}
NUMBER_VARIES |= {"GPUStartTime", "GPUEndTime", "blitCommandEncoder", "computeCommandEncoder", "setSignaledValue_"}


def test_every_failing_call_is_reported_once(mac):
    calls = counted(mac)
    expected = Scenario().run().read
    before = live(mac)
    for name, number in calls.items():
        for after in sorted({0, 1, 2, number // 2, number - 1} & {*range(number)}):
            mac.fail(name, after=after, code=3, domain="MTLLibraryErrorDomain", text="injected")
            discovery._found = None
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", ForebayWarning)
                run = Scenario().run()
            mac._failures.clear()
            reports = len(run.failures) + len(caught)
            few = name in ALTERNATIVES or (name in NUMBER_VARIES and after >= number // 2)
            assert reports == 1 or (few and not reports), (name, after, run.failures, caught)
            del run, caught
            assert live(mac) == before, (name, after)
        again = Scenario().run()
        assert (again.failures, again.read) == ([], expected), name
    assert len(calls) > 40


def test_out_of_memory_at_every_allocation(mac):
    Scenario().run()
    before = live(mac)
    for name in ("newHeapWithDescriptor_", "newBufferWithLength_options_"):
        for after in range(6):
            failures = mac._failures[name] = Failures(after, 2)  # a placement heap, then an automatic one
            run = Scenario().run()
            mac._failures.clear()
            assert all(isinstance(error, OutOfMemory) for error in run.failures)
            assert len(run.failures) == (failures.left == 0) or name.startswith("newB"), (name, after)
            assert len(run.failures) == failures.asked or name.startswith("newH"), (name, after)
            del run
            assert live(mac) == before


@pytest.mark.parametrize("code", [1, 2, 3, 8, 9, 11])
def test_failed_command_buffer_is_reported_with_metals_code_and_text(mac, port, code):
    queue, address = port.queue(), port.reserve(1 << 20)
    mac.fail_command_buffer(code)
    queue.fill(address, 1, 4096)
    queue.fill(address, 2, 4096)
    tick = queue.signal()
    with pytest.raises(DeviceError, match=r"a command buffer failed: .+MTLCommandBufferErrorDomain") as caught:
        queue.wait(tick)
    assert caught.value.code == code
    queue.wait(tick)
    assert queue.idle()


def test_failed_work_does_not_block_other_queues(mac, port):
    queues, address = [port.queue() for _ in range(3)], port.reserve(1 << 20)
    with mac.held():
        mac.fail_command_buffer(3)
        queues[0].fill(address, 1, 4096)
        queues[1].wait_for(queues[0], queues[0].signal())
        queues[1].fill(address, 2, 4096)
        queues[2].wait_for(queues[1], queues[1].signal())
        tick = queues[2].signal()
    failed = 0
    for queue in reversed(queues):
        try:
            queue.wait(tick)
        except DeviceError:  # of the one whose command buffer was the first
            failed += 1
    assert failed == 1


def test_lost_device_reports_each_wait_and_blocks_nothing(mac, port):
    queue, address = port.queue(), port.reserve(1 << 20)
    mac.fail_command_buffer(11, sticky=True)
    for _ in range(3):
        queue.fill(address, 1, 4096)
        with pytest.raises(DeviceError, match="Device Removed"):
            queue.wait(queue.signal())


def test_unreported_failure_is_a_warning_when_the_port_is_closed(mac, port):
    mac.fail_command_buffer(2)
    port.queue().fill(port.reserve(1 << 20), 1, 4096)
    with pytest.warns(ForebayWarning, match="no wait reported it"):
        port.close()


class Failures:
    """Several failures in a row of one selector, after some calls that succeed."""

    code, domain, text = 8, "", ""

    def __init__(self, after: int, number: int) -> None:
        self.after, self.left, self.asked = after, number, 0

    @property
    def sticky(self) -> bool:
        self.left -= 1
        self.asked += 1
        return self.left > 0
