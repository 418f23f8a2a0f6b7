"""CapturedMemory, compared with a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.backends.common import cuda_errors
from forebay.backends.common._releases import ReleaseLog, ReleaseWatch
from forebay.backends.common.captured_memory import CapturedMemory
from forebay.errors import DeviceError
from forebay.spi import CapturedNode


class FakePort:
    def __init__(self, segments):
        self.releases, self.segments = ReleaseLog(), dict(segments)

    def memory(self):
        return list(self.segments.items())

    def release(self, start):
        self.releases.note(start, self.segments.pop(start))


def fill(start, nbytes):
    return CapturedNode("fill", (), {"to": start, "byte": 0, "nbytes": nbytes})


@given(
    kept=st.sets(st.integers(0, 9)),
    lost=st.sets(st.integers(0, 9)),
    fills=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 10))),
)
def test_range_is_lost_if_any_byte_is_released(kept, lost, fills):
    """Ten adjacent segments of ten bytes, on two devices."""
    mapped = kept | lost
    ports = [FakePort({10 * at: 10 for at in mapped if at % 2 == which}) for which in (0, 1)]
    used = [(10 * at + offset, min(nbytes, 10 - offset)) for at, offset, nbytes in fills]
    memory = CapturedMemory(ports, [fill(*span) for span in used])
    assert memory.lost() is None
    for at in lost:
        ports[at % 2].release(10 * at)
    expected = {start // 10 for start, _ in used if start // 10 in lost}
    found = memory.lost()
    assert (found is not None) == bool(expected)
    if found is not None:
        assert found[0] // 10 in expected
        assert any(found[0] <= start and start + nbytes <= sum(found) for start, nbytes in used)


def test_range_that_is_mapped_again_is_not_lost():
    port = FakePort({0: 10})
    memory = CapturedMemory([port], [fill(2, 3)])
    port.release(0)
    assert memory.lost() == (2, 3)
    port.segments[0] = 10
    assert memory.lost() is None


class FakeQueue:
    def driver_error(self, code, call):
        return DeviceError(f"failure of {call}", code=code, call=call)


def test_check_reports_lost_memory_with_its_address():
    port = FakePort({0x100: 16})
    memory = CapturedMemory([port], [fill(0x104, 4)])
    memory.check(FakeQueue())
    port.release(0x100)
    with pytest.raises(DeviceError, match="failure of launch") as caught:
        memory.check(FakeQueue())
    assert caught.value.code == cuda_errors.ILLEGAL_ADDRESS
    assert "4 bytes at 0x104, but the device has released that memory" in caught.value.__notes__[0]


def test_host_memory_is_ignored():
    port = FakePort({100: 10})
    memory = CapturedMemory([port], [fill(5, 10), fill(95, 10), fill(105, 10), fill(200, 1)])
    port.release(100)
    assert memory.lost() is None


@pytest.fixture
def capture():
    """The list of captured nodes, and a watch for it."""
    work = []
    watch = ReleaseWatch(work)
    yield work, watch
    watch.stop()


def test_range_that_is_released_during_the_capture_is_lost(capture):
    work, watch = capture
    port = FakePort({0: 10, 20: 10})
    work += [fill(2, 3), fill(25, 1)]
    port.release(0)
    memory = CapturedMemory([port], work, watch.releases)
    assert memory.lost() == (2, 3)
    port.segments[0] = 10  # the same address is memory again
    assert memory.lost() is None


def test_range_that_was_released_before_its_node_is_host_memory(capture):
    """The system may give addresses of released memory to others, whose memory the device can copy."""
    work, watch = capture
    port = FakePort({0: 10})
    port.release(0)
    work.append(fill(2, 3))
    memory = CapturedMemory([port], work, watch.releases)
    port.releases.note(100, 10)
    assert memory.lost() is None


def test_release_beside_a_range_is_not_its_release(capture):
    work, watch = capture
    port = FakePort({0: 10, 20: 10})
    work += [fill(10, 10), fill(30, 1)]  # of the host
    port.release(0)
    port.release(20)
    assert CapturedMemory([port], work, watch.releases).lost() is None


def test_graph_inside_another_keeps_its_lost_range(capture):
    work, watch = capture
    port = FakePort({0: 10})
    work.append(fill(2, 3))
    inner = CapturedMemory([port], work)
    port.release(0)
    assert CapturedMemory([port], work, (), [inner]).lost() == (2, 3)
    assert watch.releases == [(1, 0, 10)]


def test_only_ports_with_a_range_are_checked():
    ports = [FakePort({0: 10}), FakePort({100: 10})]
    memory = CapturedMemory(ports, [fill(2, 3)])
    assert memory.ports == (ports[0],)
    assert memory.logs == (ports[0].releases,)
    assert memory.lost() is None
    assert memory.checked_at == 0


def test_stopped_watch_gets_no_releases(capture):
    _, watch = capture
    port = FakePort({0: 10, 10: 10})
    other = ReleaseWatch([])
    port.release(0)
    other.stop()
    other.stop()
    port.release(10)
    assert other.releases == [(0, 0, 10)]
    assert watch.releases == [(0, 0, 10), (0, 10, 10)]
