"""CapturedMemory, compared with a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.backends.common.captured_memory import CapturedMemory
from forebay.spi import CapturedNode


class FakePort:
    def __init__(self, segments):
        self.release_count, self.segments = 0, dict(segments)

    def memory(self):
        return list(self.segments.items())

    def release(self, start):
        del self.segments[start]
        self.release_count += 1


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


def test_host_memory_is_ignored():
    port = FakePort({100: 10})
    memory = CapturedMemory([port], [fill(5, 10), fill(95, 10), fill(105, 10), fill(200, 1)])
    port.release(100)
    assert memory.lost() is None
