"""What recorded work uses, beside a plain set of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.backends.host.footprint import Footprint
from forebay.spi import Recorded


class Ground:
    def __init__(self, pieces):
        self.losses, self.pieces = 0, dict(pieces)

    def memory(self):
        return list(self.pieces.items())

    def lose(self, start):
        del self.pieces[start]
        self.losses += 1


def fill(start, nbytes):
    return Recorded("fill", (), {"to": start, "byte": 0, "nbytes": nbytes})


@given(
    kept=st.sets(st.integers(0, 9)),
    lost=st.sets(st.integers(0, 9)),
    fills=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 10))),
)
def test_it_is_lost_when_a_byte_is(kept, lost, fills):
    """Ten segments of ten bytes, side by side, of two devices."""
    there = kept | lost
    ports = [Ground({10 * at: 10 for at in there if at % 2 == which}) for which in (0, 1)]
    used = [(10 * at + offset, min(nbytes, 10 - offset)) for at, offset, nbytes in fills]
    footprint = Footprint(ports, [fill(*span) for span in used])
    assert footprint.lost() is None
    for at in lost:
        ports[at % 2].lose(10 * at)
    wanted = {start // 10 for start, _ in used if start // 10 in lost}
    found = footprint.lost()
    assert (found is not None) == bool(wanted)
    if found is not None:
        assert found[0] // 10 in wanted
        assert any(found[0] <= start and start + nbytes <= sum(found) for start, nbytes in used)


def test_what_came_again_is_there():
    ground = Ground({0: 10})
    footprint = Footprint([ground], [fill(2, 3)])
    ground.lose(0)
    assert footprint.lost() == (2, 3)
    ground.pieces[0] = 10
    assert footprint.lost() is None


def test_work_on_host_memory_is_not_its_business():
    ground = Ground({100: 10})
    footprint = Footprint([ground], [fill(5, 10), fill(95, 10), fill(105, 10), fill(200, 1)])
    ground.lose(100)
    assert footprint.lost() is None
