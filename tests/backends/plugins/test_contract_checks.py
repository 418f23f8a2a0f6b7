"""A package's backend that raises, gives nonsense or cannot be loaded: it is named, and nothing else suffers."""

from __future__ import annotations

import types

import pytest
from support.broken_plugin import KIND

import forebay
from forebay import Device, DeviceError, ForebayError, backends
from forebay import memory as mem
from forebay.runtime.devices.current import opened_for
from forebay.spi import DeviceProps
from forebay.testing.fake import FakeDriver, FakePort

WHO = r"the backend for acme \(acme_bad:Driver\)"
MIB = 1 << 20


def use(device="acme:0"):
    """What a program does with a device, each kind of call once."""
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


def test_a_good_one_is_used(plugin):
    use()
    assert mem.memory_reserved("acme:0") == plugin.ports[0].reserved == 0
    assert isinstance(backends.driver(KIND), FakeDriver)  # itself, whatever watches it


_PORT = ["reserve", "release", "memory_info", "queue"]
_QUEUE = ["copy", "fill", "signal", "mark", "reached", "idle", "wait", "wait_for", "call", "elapsed_ms"]


@pytest.mark.parametrize(
    ("part", "name"), [("driver", "open"), *(("port", name) for name in _PORT), *(("queue", name) for name in _QUEUE)]
)
@pytest.mark.parametrize(
    "error", [KeyError("nonsense"), StopIteration(), MemoryError()], ids=lambda e: type(e).__name__
)
def test_what_raises_is_told_as_the_backends(plugin, part, name, error):
    plugin.spoil(part, name, error)
    with pytest.raises(
        DeviceError, match=rf"{WHO} broke its contract: {name}\(\) raised {type(error).__name__}"
    ) as told:
        use()
    assert told.value.__cause__ is error
    assert told.value.call == name


@pytest.mark.parametrize("name", ["copy", "fill", "wait_for"])
def test_an_error_that_may_be_the_callers_stays_what_it_is(plugin, name):
    plugin.spoil("queue", name, ValueError("what is that?"))
    with pytest.raises(ValueError, match=r"^what is that\?\n") as told:
        use()
    assert told.value.__notes__ == [f"raised in {name}() by the backend for acme (acme_bad:Driver)"]


def test_a_drivers_own_error_is_left_alone(plugin):
    plugin.spoil("port", "reserve", DeviceError("the card is on fire", code=451))
    with pytest.raises(DeviceError, match=r"^the card is on fire$") as told:
        use()
    assert told.value.code == 451
    assert mem.memory_reserved("acme:0") == 0


@pytest.mark.parametrize("count", [KeyError("nonsense"), None, -1, "two", 2.0, True, 1 << 40], ids=repr)
def test_a_count_that_is_none_is_none(plugin, count):
    plugin.spoil("driver", "count", count)
    assert forebay.device_count(KIND) == 0
    gave = "raised KeyError: 'nonsense'" if isinstance(count, Exception) else f"gave {count!r}, which is no number"
    assert f"the backend for acme (acme_bad:Driver) broke its contract: count() {gave}" in backends.why_not(KIND)
    with pytest.raises(ForebayError, match=WHO):
        forebay.empty(3, device="acme:0")


@pytest.mark.parametrize("said", [KeyError("nonsense"), None, "", 7], ids=repr)
def test_a_reason_that_is_none(plugin, said):
    plugin.spoil("driver", "count", 0)
    plugin.spoil("driver", "why_not", said)
    gave = "raised KeyError: 'nonsense'" if isinstance(said, Exception) else f"gave {said!r}"
    assert backends.why_not(KIND) == f"the backend for acme (acme_bad:Driver) has no device, and why_not() {gave}"


def test_a_reason_is_not_asked_for_without_need(plugin):
    plugin.spoil("driver", "why_not", KeyError("nonsense"))
    assert backends.why_not(KIND) == ""


@pytest.mark.parametrize("given", [None, 7, object], ids=["None", "int", "a class"])
def test_what_is_no_port(plugin, given):
    plugin.spoil("driver", "open", given)
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: open\(\) gave .*, which has no props, reserve"):
        use()


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
def test_props_that_are_none(plugin, props, words):
    plugin.port.props = property(lambda self: props, lambda self, value: None)
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: open\(\) gave a device {words}"):
        use()
    assert plugin.ports[0].calls == [("close",)]


@pytest.mark.parametrize("address", [None, "0x1000", 0, -4096, 1 << 63, 1.5], ids=repr)
def test_an_address_that_is_none(plugin, address):
    plugin.spoil("port", "reserve", address)
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: reserve\(\) gave .*, which is no address"):
        use()
    assert mem.memory_reserved("acme:0") == mem.memory_allocated("acme:0") == 0


def test_an_address_that_is_not_aligned_is_given_back(plugin):
    plugin.spoil("port", "reserve", lambda port, nbytes: FakePort.reserve(port, nbytes) + 512)
    plugin.spoil("port", "release", lambda port, address: FakePort.release(port, address - 512))
    with pytest.raises(DeviceError, match=r"which is not aligned to 2097152 bytes"):
        use()
    assert [call[0] for call in plugin.ports[0].calls][-2:] == ["reserve", "release"]
    assert plugin.ports[0].reserved == 0


def test_memory_that_is_lent_already(plugin):
    """What had it first keeps it."""
    plugin.spoilt = False
    addresses = []
    plugin.spoil("port", "reserve", lambda port, nbytes: addresses[0] + 2 * MIB)
    first = forebay.allocate(30 * MIB, "acme:0")
    addresses.append(first.address)
    plugin.spoilt = True
    with pytest.raises(DeviceError, match=rf"{WHO} .*reserve\(\) gave 33554432 bytes at .*, where it gave 31457280 at"):
        forebay.allocate(32 * MIB, "acme:0")
    assert mem.memory_reserved("acme:0") == plugin.ports[0].reserved == 30 * MIB
    first.free()
    mem.empty_cache("acme:0")
    assert plugin.ports[0].reserved == 0


@pytest.mark.parametrize("info", [None, 7, (1, 2, 3), ("1", 2), (-1, 7), (8, 7), [1, 2]], ids=repr)
def test_an_amount_that_is_none(plugin, info):
    plugin.spoil("port", "memory_info", info)
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: memory_info\(\) gave .*how much is free"):
        mem.mem_get_info("acme:0")


@pytest.mark.parametrize("given", [None, 7], ids=repr)
def test_what_is_no_queue(plugin, given):
    plugin.spoil("port", "queue", given)
    with pytest.raises(
        DeviceError, match=rf"{WHO} broke its contract: queue\(\) gave {given}, which has no handle, copy"
    ):
        use()
    assert ("close",) in plugin.ports[0].calls  # the device could not be opened, and is closed again


@pytest.mark.parametrize("handle", [None, -1, "first"], ids=repr)
def test_a_handle_that_is_none(plugin, handle):
    plugin.queue.handle = property(lambda self: handle, lambda self, value: None)
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: queue\(\) gave a queue whose handle is"):
        use()


@pytest.mark.parametrize("tick", [None, 0, "1", 1.0], ids=repr)
@pytest.mark.parametrize("call", ["signal", "mark"])
def test_a_tick_that_is_none(plugin, call, tick):
    plugin.spoil("queue", call, tick if call == "signal" else types.SimpleNamespace(tick=tick))
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: {call}\(\) gave .*, which is no tick after"):
        use()


@pytest.mark.parametrize("took", [None, "1", float("nan"), 1j], ids=repr)
def test_a_time_that_is_none(plugin, took):
    plugin.spoil("queue", "elapsed_ms", took)
    words = rf"{WHO} broke its contract: elapsed_ms\(\) gave .*, which is no number of milliseconds"
    with pytest.raises(DeviceError, match=words):
        use()


def test_a_tick_that_goes_back(plugin):
    plugin.spoil("queue", "signal", 3)
    plugin.spoilt = False
    stream = forebay.Stream("acme:0")
    for _ in range(5):
        stream.record_event()
    plugin.spoilt = True
    with pytest.raises(DeviceError, match=r"signal\(\) gave 3, which is no tick after 5"):
        stream.record_event()


@pytest.mark.parametrize(("call", "given"), [("reached", None), ("reached", -1), ("idle", None), ("idle", "yes")])
def test_an_answer_that_is_none(plugin, call, given):
    plugin.spoil("queue", call, given)
    plugin.spoilt = False
    stream = forebay.Stream("acme:0")
    event = stream.record_event()
    plugin.spoilt = True
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: {call}\(\) gave {given!r}"):
        event.query() if call == "reached" else stream.query()


def test_memory_that_cannot_be_given_back_is_not_forgotten(plugin):
    plugin.spoil("port", "release")
    forebay.allocate(30 * MIB, "acme:0").free()
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: release\(\) raised KeyError"):
        mem.empty_cache("acme:0")
    plugin.spoilt = False
    mem.empty_cache("acme:0")
    assert plugin.ports[0].reserved == 0


def test_a_port_that_is_opened_again_is_the_same_and_watched_once(plugin):
    """A backend may keep its ports: what was reserved before it was closed is forgotten."""
    port = FakePort(kind=KIND)
    plugin.spoil("driver", "open", lambda driver, index: port)
    driver = backends.driver(KIND)
    seen = set()
    for _ in range(3):
        opened = driver.open(0)
        seen.add(type(opened))
        assert opened is port
        opened.reserve(2 * MIB)
        opened.close()
        port._closed = False
    assert len(seen) == 1


def test_closing_that_raises_is_told(plugin):
    plugin.spoil("port", "close")
    forebay.Stream("acme:0")
    with pytest.raises(DeviceError, match=rf"{WHO} broke its contract: close\(\) raised KeyError"):
        opened_for(Device("acme:0")).port.close()
