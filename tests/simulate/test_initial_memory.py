"""Memory that a simulated device has reserved before its program begins."""

from __future__ import annotations

import pytest

from forebay import OutOfMemory, simulate
from forebay.errors import Unsupported
from forebay.simulate.initial_memory import InitialMemory
from forebay.spi import Heaps

MIB = 1 << 20
HEAPS = Heaps(recommended=1 << 30, longest=1 << 30)


@pytest.fixture
def gpu():
    return simulate.Device(100 * MIB, "expandable_segments:True")


def test_segment_serves_requests_and_returns_to_the_device(gpu):
    InitialMemory(gpu).reserve_segment(40 * MIB, 0, False, 0)
    assert (gpu.device_used, gpu.stats()["reserved_bytes.all.current"]) == (40 * MIB, 40 * MIB)
    gpu.apply_settings("expandable_segments:False")
    address = gpu.allocate(30 * MIB)
    assert gpu.device_used == 40 * MIB
    gpu.free(address)
    gpu.allocate(80 * MIB)  # the segment returns first
    assert gpu.device_used == 80 * MIB
    assert gpu.broken() is None


def test_pages_serve_requests_and_grow(gpu):
    memory = InitialMemory(gpu)
    page = memory.page_bytes(small=False)
    space = memory.reserve_space(page, page, 0, False, 0)
    assert memory.commit(space, 2 * page)
    assert not memory.commit(space, page)  # they are committed already
    assert gpu.device_used == 2 * page
    block = memory.allocate_at(space, page)
    assert gpu.allocate(2 * page) == space + page  # behind it, in this space
    assert gpu.device_used == 3 * page
    del block
    assert gpu.broken() is None


def test_more_than_the_device_has_is_refused(gpu):
    memory = InitialMemory(gpu)
    with pytest.raises(OutOfMemory):
        memory.reserve_segment(102 * MIB, 0, False, 0)
    with pytest.raises(ValueError, match="whole pages"):
        memory.reserve_space(10 * MIB, 1, 0, False, 0)


def test_heaps_are_refused():
    with pytest.raises(Unsupported, match="mps:0 allocates in heaps"):
        InitialMemory(simulate.Device(1 << 30, heaps=HEAPS))
