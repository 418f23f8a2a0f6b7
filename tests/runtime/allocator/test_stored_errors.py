"""Exceptions that are stored keep no frames, whose variables would stay alive."""

from __future__ import annotations

import gc
import weakref

import pytest

import forebay
from forebay import DeviceError, OutOfMemory

pytestmark = pytest.mark.usefixtures("clean")
MIB = 1 << 20


class Local:
    """An object that only a frame refers to."""


@pytest.fixture(params=["cuda", "cuda expandable", "mtia", "cpu"])
def kind(request, monkeypatch):
    kind, _, expandable = request.param.partition(" ")
    if expandable:
        monkeypatch.setenv("FOREBAY_ALLOC_CONF", "expandable_segments:True")
    if kind == "cpu":
        forebay.memory.empty_cache(kind)
        before = forebay.memory.mem_get_info(kind)[1]
        forebay.memory.set_capacity(256 * MIB, kind)
        yield kind
        forebay.memory.set_capacity(before, kind)
    else:
        with forebay.emulate(kind, memory=256 * MIB):
            yield kind


def empty(mib: int, kind: str) -> forebay.Tensor:
    return forebay.empty(mib * MIB, dtype="uint8", device=kind)


def test_retry_in_the_handler_keeps_nothing_alive(kind):
    def work() -> weakref.ref[Local]:
        local, large = Local(), empty(150, kind)
        try:
            empty(150, kind)
        except OutOfMemory:
            try:
                empty(120, kind)  # a smaller batch
            except OutOfMemory:
                del large
                return weakref.ref(local)
        raise AssertionError("did not run out of memory")

    found = work()
    gc.collect()
    assert found() is None
    assert forebay.memory.memory_allocated(kind) == 0


def test_advice_keeps_nothing_alive(kind):
    """The advice replays the history on simulated devices, which run out of memory, too."""
    forebay.memory.record_history(1000, device=kind)
    kept, cached = empty(20, kind), empty(190, kind)
    del cached
    forebay.memory.empty_cache(kind)
    with forebay.memory.caching_allocator_disabled():
        uncached = forebay.allocate(80 * MIB, kind)

    def work() -> weakref.ref[Local]:
        local, mine = Local(), empty(120, kind)
        try:
            empty(150, kind)
        except OutOfMemory:
            del mine
            return weakref.ref(local)
        raise AssertionError("did not run out of memory")

    found = [work() for _ in range(3)]
    gc.collect()
    assert [each() for each in found] == [None] * 3
    assert forebay.memory.memory_allocated(kind) == kept.nbytes
    uncached.free()


def test_failure_of_queued_work_keeps_nothing_alive():
    stream, locals_ = forebay.Stream("cpu"), []

    def fail() -> None:
        local = Local()
        locals_.append(weakref.ref(local))
        try:
            _ = {}["first"]
        except KeyError as error:
            raise LookupError("second") from error

    stream.queue.call(fail)
    while not stream.query():
        pass
    gc.collect()
    assert locals_[0]() is None
    with pytest.raises(DeviceError, match="LookupError: second") as caught:
        stream.synchronize()
    (note,) = caught.value.__cause__.__notes__
    assert note.startswith("raised by the queued function:")
    assert 'raise LookupError("second")' in note
