"""Search of the largest value that fits: equal to brute force, with few runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.interop.torch.fit.search import LargestValue, Probe

GIB = 1 << 30
MIB = 1 << 20


def search(allocated, *, least=1, most=512, capacity=24 * GIB, reserved=None, outside=GIB // 2):
    """Search with functions of the bytes, and return the answer and the values that ran."""
    found = LargestValue(least, most, capacity)
    while (value := found.following()) is not None:
        blocks = allocated(value) + outside
        fits = blocks <= capacity
        in_segments = min((reserved or allocated)(value) + outside, capacity) if fits else capacity
        found.add(Probe(value, fits, blocks if fits else capacity, in_segments))
        assert len(found.probes) <= 2 * most, "the search does not end"
    return found.largest, [each.value for each in found.probes]


def brute_force(allocated, *, least=1, most=512, capacity=24 * GIB, outside=GIB // 2):
    fitting = [each for each in range(least, most + 1) if allocated(each) + outside <= capacity]
    return max(fitting, default=None)


def test_linear_question_takes_three_runs():
    answer, values = search(lambda n: 2 * GIB + n * 200 * MIB)
    assert answer == brute_force(lambda n: 2 * GIB + n * 200 * MIB) == 110
    assert values == [1, 8, 110]


@given(
    base=st.integers(0, 20 * GIB), slope=st.integers(1, 4 * GIB), bend=st.floats(1, 1.4),
    jitter=st.integers(0, 64 * MIB), step=st.integers(1, 64), least=st.integers(1, 40), more=st.integers(0, 600),
)  # fmt: skip
def test_answer_is_that_of_brute_force(base, slope, bend, jitter, step, least, more):
    """With bytes in blocks that rise evenly or in steps, and reserved bytes above them that bend at the limit."""

    def allocated(n):
        return base + slope * n + (jitter * (n // step) if step > 1 else 0)

    most = least + more
    answer, values = search(allocated, least=least, most=most, reserved=lambda n: int(bend * allocated(n)))
    expected = brute_force(allocated, least=least, most=most)
    assert answer == expected
    assert len(values) <= 24


def test_quadratic_bytes_are_searched():
    """Attention that keeps its scores needs bytes in proportion to the square of the length."""

    def allocated(n):
        return 3 * GIB + n * n * 300

    answer, values = search(allocated, least=128, most=32768)
    assert answer == brute_force(allocated, least=128, most=32768)
    assert len(values) <= 24


@pytest.mark.parametrize(
    ("allocated", "most", "answer", "count"),
    [
        (lambda n: 30 * GIB, 512, None, 1),  # not even the first
        (lambda n: GIB, 512, 512, 3),  # a value that decides nothing
        (lambda n: GIB * n, 1, 1, 1),  # a range of one value
        (lambda n: 0, 100, 100, 3),
    ],
)
def test_ends_of_the_range(allocated, most, answer, count):
    found, values = search(allocated, most=most)
    assert found == answer
    assert len(values) <= count
