"""The growth of resident memory in the notes of a snapshot: sentences, and values of other files."""

from __future__ import annotations

import pytest

from forebay.snapshot.formats.resident_note import RESIDENT, Part, ResidentGrowth, resident_growth_of

MIB = 1 << 20


def growth(with_site: int, *parts: Part, peak: int = 140, now: int = 140) -> ResidentGrowth:
    return ResidentGrowth(40 * MIB, peak * MIB, now * MIB, with_site * MIB, parts)


def test_sentence_has_the_share_with_a_site():
    assert growth(75).sentence() == (
        "Resident memory grew by 100.00 MiB to 140.00 MiB; 75.00 MiB (75.0%) of it are arrays with a site."
    )
    assert growth(0).sentence().endswith("to 140.00 MiB; none of it has a site.")
    assert growth(400).sentence().endswith("arrays with a site had up to 400.00 MiB, not all of it touched.")
    assert growth(0, peak=40).sentence() == "Resident memory did not grow: it is 140.00 MiB."


def test_rest_names_the_largest_parts_first_and_free_memory_last():
    parts = [
        Part("free in the C heap", None, 90 * MIB, freed=True),
        Part("Python objects", 10 * MIB, 2 * MIB),
        Part("Arrow", None, 30 * MIB),
        Part("arrays", 50 * MIB, 50 * MIB, has_site=True),
        Part("code", None, 1000),
    ]
    rest = "Without a site: Arrow 30.00 MiB, Python objects 10.00 MiB, free in the C heap 10.00 MiB."
    assert growth(50, *parts).rest() == rest
    assert growth(100, *parts).rest() == ""
    assert growth(10, parts[1]).rest() == "Without a site: Python objects 10.00 MiB, unknown 80.00 MiB."


def test_share_is_from_0_to_1():
    assert [growth(size).share for size in (0, 25, 300)] == [0, 0.25, 1]
    assert growth(0, peak=10).share == 1


def test_notes_give_the_same_growth():
    original = growth(
        75, Part("Arrow", None, 5), Part("free", 7, None, freed=True), Part("arrays", 1, 2, has_site=True)
    )
    assert resident_growth_of({RESIDENT: original.as_json()}) == original


@pytest.mark.parametrize(
    "noted",
    [
        None,
        5,
        {},
        {"start_bytes": 1, "peak_bytes": -1, "now_bytes": 1, "with_site_bytes": 0, "parts": []},
        {"start_bytes": 1, "peak_bytes": 1.5, "now_bytes": 1, "with_site_bytes": 0, "parts": []},
        {"start_bytes": True, "peak_bytes": 1, "now_bytes": 1, "with_site_bytes": 0, "parts": []},
        {"start_bytes": 1, "peak_bytes": 1, "now_bytes": 1, "with_site_bytes": 1 << 63, "parts": []},
        {"start_bytes": 1, "peak_bytes": 1, "now_bytes": 1, "with_site_bytes": 0, "parts": 5},
    ],
)
def test_other_values_are_ignored(noted):
    assert resident_growth_of({RESIDENT: noted}) is None


def test_other_parts_are_ignored():
    sizes = {"start_bytes": 1, "peak_bytes": 2, "now_bytes": 2, "with_site_bytes": 0}
    parts = [5, {"name": 5}, {"name": "x" * 1000, "peak_bytes": "many", "now_bytes": 3, "has_site": 1}] + [{}] * 1000
    (part,) = resident_growth_of({RESIDENT: {**sizes, "parts": parts}}).parts
    assert len(part.name) <= 80
    assert (part.peak, part.now, part.has_site) == (None, 3, False)
