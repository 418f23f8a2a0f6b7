"""Contract checks: errors and invalid results of a package's backend are reported with the backend's name."""

from __future__ import annotations

import types

import pytest
from support.broken_plugin import KIND

import forebay
from forebay import DeviceError, ForebayError, backends
from forebay import memory as mem
from forebay._base.device_spec import Device
from forebay.runtime.devices.current import opened_for
from forebay.spi import DeviceProps
from forebay.testing.fake import FakeDriver, FakePort

BACKEND = r"the backend for acme \(acme_bad:Driver\)"
BROKE = rf"{BACKEND} broke its contract"
MIB = 1 << 20


def use_device(device="acme:0"):
    """Call each method of a device once, as a program would."""
    with forebay.Stream(device) as stream:
        tensor = forebay.empty(MIB, dtype="uint8", device=device)
        other = forebay.zeros(MIB, dtype="uint8", device=device)
        tensor.copy_(other)
        event = forebay.Event(enable_timing=True)
        event.record()
        end = stream.record_event(forebay.Event(enable_timing=True))
        forebay.default_stream(device).wait_stream(stream)
        stream.queue.call(lambda: None)
        event.query()
        stream.query()
        stream.synchronize()
        event.elapsed_time(end)
    mem.mem_get_info(device)
    del tensor, other
    mem.empty_cache(device)


def test_valid_backend_is_used(plugin):
    use_device()
    assert mem.memory_reserved("acme:0") == plugin.ports[0].reserved == 0
    assert isinstance(backends.driver(KIND), FakeDriver)  # the checks keep the object's class


_PORT = ["reserve", "release", "memory_info", "queue"]
_QUEUE = ["copy", "fill", "signal", "mark", "reached", "idle", "wait", "wait_for", "call", "elapsed_ms"]


@pytest.mark.parametrize(
    ("part", "name"), [("driver", "open"), *(("port", name) for name in _PORT), *(("queue", name) for name in _QUEUE)]
)
@pytest.mark.parametrize(
    "error", [KeyError("nonsense"), StopIteration(), MemoryError()], ids=lambda e: type(e).__name__
)
def test_unexpected_exception_becomes_device_error(plugin, part, name, error):
    plugin.break_method(part, name, error)
    with pytest.raises(DeviceError, match=rf"{BROKE}: {name}\(\) raised {type(error).__name__}") as caught:
        use_device()
    assert caught.value.__cause__ is error
    assert caught.value.call == name


@pytest.mark.parametrize("name", ["copy", "fill", "wait_for"])
def test_argument_error_is_kept_and_gets_a_note(plugin, name):
    plugin.break_method("queue", name, ValueError("what is that?"))
    with pytest.raises(ValueError, match=r"^what is that\?\n") as caught:
        use_device()
    assert caught.value.__notes__ == [f"raised in {name}() by the backend for acme (acme_bad:Driver)"]


def test_device_error_of_the_backend_is_kept(plugin):
    plugin.break_method("port", "reserve", DeviceError("the card is on fire", code=451))
    with pytest.raises(DeviceError, match=r"^the card is on fire$") as caught:
        use_device()
    assert caught.value.code == 451
    assert mem.memory_reserved("acme:0") == 0


@pytest.mark.parametrize("count", [KeyError("nonsense"), None, -1, "two", 2.0, True, 1 << 40], ids=repr)
def test_invalid_count_means_no_devices(plugin, count):
    plugin.break_method("driver", "count", count)
    assert forebay.device_count(KIND) == 0
    what = "raised KeyError: 'nonsense'" if isinstance(count, Exception) else f"returned {count!r}, which is not"
    assert f"the backend for acme (acme_bad:Driver) broke its contract: count() {what}" in backends.why_not(KIND)
    with pytest.raises(ForebayError, match=BACKEND):
        forebay.empty(3, device="acme:0")


@pytest.mark.parametrize("reason", [KeyError("nonsense"), None, "", 7], ids=repr)
def test_invalid_reason_is_reported(plugin, reason):
    plugin.break_method("driver", "count", 0)
    plugin.break_method("driver", "why_not", reason)
    what = "raised KeyError: 'nonsense'" if isinstance(reason, Exception) else f"returned {reason!r}"
    assert backends.why_not(KIND) == f"the backend for acme (acme_bad:Driver) has no device, and why_not() {what}"


def test_why_not_is_not_called_if_there_are_devices(plugin):
    plugin.break_method("driver", "why_not", KeyError("nonsense"))
    assert backends.why_not(KIND) == ""


@pytest.mark.parametrize("given", [None, 7, object], ids=["None", "int", "a class"])
def test_open_rejects_objects_that_are_not_ports(plugin, given):
    plugin.break_method("driver", "open", given)
    with pytest.raises(DeviceError, match=rf"{BROKE}: open\(\) returned .*, which has no props, reserve"):
        use_device()


@pytest.mark.parametrize(
    ("props", "words"),
    [
        (None, "whose props are None"),
        (DeviceProps("cuda", 0, "", 1 << 30), "of kind 'cuda', not 'acme'"),
        (DeviceProps(KIND, -1, "", 1 << 30), "whose index is -1"),
        (DeviceProps(KIND, 0, "", 0), "whose total_bytes is 0"),
        (DeviceProps(KIND, 0, "", "1 GiB"), "whose total_bytes is '1 GiB'"),
        (DeviceProps(KIND, 0, "", 1 << 30, pooled_streams=None), "whose pooled_streams is None"),
        (DeviceProps(KIND, 0, "", 1 << 30, stream_priorities=0), "whose stream_priorities is 0"),
        (DeviceProps(KIND, 0, "", 1 << 30, heaps=True), "whose heaps are True, not Heaps"),
        (DeviceProps(KIND, 0, None, 1 << 30), "whose name is None"),
        (DeviceProps(KIND, 0, "", 1 << 30, multi_processor_count="x"), "whose multi_processor_count is 'x'"),
        (DeviceProps(KIND, 0, "", 1 << 30, details=None), "whose details are None, not a mapping"),
        (DeviceProps(KIND, 0, "", 1 << 30, details={"minor": None}), "whose minor is None"),
    ],
    ids=[
        "None",
        "kind",
        "index",
        "total",
        "text",
        "streams",
        "priorities",
        "heaps",
        "name",
        "count",
        "details",
        "minor",
    ],
)
def test_open_rejects_invalid_props(plugin, props, words):
    plugin.port.props = property(lambda self: props, lambda self, value: None)
    with pytest.raises(DeviceError, match=rf"{BROKE}: open\(\) returned a device {words}"):
        use_device()
    assert plugin.ports[0].calls == [("close",)]


@pytest.mark.parametrize("address", [None, "0x1000", 0, -4096, 1 << 63, 1.5], ids=repr)
def test_reserve_rejects_invalid_address(plugin, address):
    plugin.break_method("port", "reserve", address)
    with pytest.raises(DeviceError, match=rf"{BROKE}: reserve\(\) returned .*, which is not a valid address"):
        use_device()
    assert mem.memory_reserved("acme:0") == mem.memory_allocated("acme:0") == 0


def test_reserve_releases_unaligned_segment(plugin):
    plugin.break_method("port", "reserve", lambda port, nbytes: FakePort.reserve(port, nbytes) + 512)
    plugin.break_method("port", "release", lambda port, address: FakePort.release(port, address - 512))
    with pytest.raises(DeviceError, match=r"which is not aligned to 2097152 bytes"):
        use_device()
    assert [call[0] for call in plugin.ports[0].calls][-2:] == ["reserve", "release"]
    assert plugin.ports[0].reserved == 0


def test_reserve_rejects_overlapping_segment(plugin):
    plugin.broken = False
    addresses = []
    plugin.break_method("port", "reserve", lambda port, nbytes: addresses[0] + 2 * MIB)
    first = forebay.allocate(30 * MIB, "acme:0")
    addresses.append(first.address)
    plugin.broken = True
    with pytest.raises(DeviceError, match=rf"{BACKEND} .*reserve\(\) returned 33554432 bytes at .*, which overlap"):
        forebay.allocate(32 * MIB, "acme:0")
    assert mem.memory_reserved("acme:0") == plugin.ports[0].reserved == 30 * MIB
    first.free()
    mem.empty_cache("acme:0")
    assert plugin.ports[0].reserved == 0


@pytest.mark.parametrize("info", [None, 7, (1, 2, 3), ("1", 2), (-1, 7), (8, 7), [1, 2]], ids=repr)
def test_memory_info_rejects_invalid_amounts(plugin, info):
    plugin.break_method("port", "memory_info", info)
    with pytest.raises(DeviceError, match=rf"{BROKE}: memory_info\(\) returned .*free and total bytes"):
        mem.mem_get_info("acme:0")


@pytest.mark.parametrize("given", [None, 7], ids=repr)
def test_queue_rejects_objects_that_are_not_queues(plugin, given):
    plugin.break_method("port", "queue", given)
    with pytest.raises(DeviceError, match=rf"{BROKE}: queue\(\) returned {given}, which has no handle, copy"):
        use_device()
    assert ("close",) in plugin.ports[0].calls  # a port that failed to open is closed


@pytest.mark.parametrize("handle", [None, -1, "first"], ids=repr)
def test_queue_rejects_invalid_handle(plugin, handle):
    plugin.queue.handle = property(lambda self: handle, lambda self, value: None)
    with pytest.raises(DeviceError, match=rf"{BROKE}: queue\(\) returned a queue whose handle is"):
        use_device()


@pytest.mark.parametrize("tick", [None, 0, "1", 1.0], ids=repr)
@pytest.mark.parametrize("call", ["signal", "mark"])
def test_signal_and_mark_reject_invalid_tick(plugin, call, tick):
    plugin.break_method("queue", call, tick if call == "signal" else types.SimpleNamespace(tick=tick))
    with pytest.raises(DeviceError, match=rf"{BROKE}: {call}\(\) returned .*, which is not a tick after"):
        use_device()


@pytest.mark.parametrize("elapsed", [None, "1", float("nan"), 1j], ids=repr)
def test_elapsed_ms_rejects_invalid_time(plugin, elapsed):
    plugin.break_method("queue", "elapsed_ms", elapsed)
    words = rf"{BROKE}: elapsed_ms\(\) returned .*, which is not a number of milliseconds"
    with pytest.raises(DeviceError, match=words):
        use_device()


def test_signal_rejects_decreasing_tick(plugin):
    plugin.break_method("queue", "signal", 3)
    plugin.broken = False
    stream = forebay.Stream("acme:0")
    for _ in range(5):
        stream.record_event()
    plugin.broken = True
    with pytest.raises(DeviceError, match=r"signal\(\) returned 3, which is not a tick after 5"):
        stream.record_event()


@pytest.mark.parametrize(("call", "given"), [("reached", None), ("reached", -1), ("idle", None), ("idle", "yes")])
def test_reached_and_idle_reject_invalid_results(plugin, call, given):
    plugin.break_method("queue", call, given)
    plugin.broken = False
    stream = forebay.Stream("acme:0")
    event = stream.record_event()
    plugin.broken = True
    with pytest.raises(DeviceError, match=rf"{BROKE}: {call}\(\) returned {given!r}"):
        event.query() if call == "reached" else stream.query()


def test_segment_is_kept_if_release_fails(plugin):
    plugin.break_method("port", "release")
    forebay.allocate(30 * MIB, "acme:0").free()
    with pytest.raises(DeviceError, match=rf"{BROKE}: release\(\) raised KeyError"):
        mem.empty_cache("acme:0")
    plugin.broken = False
    mem.empty_cache("acme:0")
    assert plugin.ports[0].reserved == 0


def test_reopened_port_is_checked_once(plugin):
    """A backend may reuse its ports; closing one clears its recorded segments."""
    port = FakePort(kind=KIND)
    plugin.break_method("driver", "open", lambda driver, index: port)
    driver = backends.driver(KIND)
    classes = set()
    for _ in range(3):
        opened = driver.open(0)
        classes.add(type(opened))
        assert opened is port
        opened.reserve(2 * MIB)
        opened.close()
        port._closed = False
    assert len(classes) == 1


def test_close_that_raises_is_reported(plugin):
    plugin.break_method("port", "close")
    forebay.Stream("acme:0")
    with pytest.raises(DeviceError, match=rf"{BROKE}: close\(\) raised KeyError"):
        opened_for(Device("acme:0")).port.close()
