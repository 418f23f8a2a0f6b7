"""Sites, totals, the summary and the segments, each by the smallest scene that shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from support.snapshot_scenes import MIB, Scene, steps, told, training

from forebay.snapshot.analysis import summary as analysis_summary
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.model import Frame
from forebay.snapshot.sites import label_of, relative

SITE = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("calls", "label"),
    [
        (("app.py:1 main", "app.py:9 load"), "app.py:9 load"),
        (("app.py:1 main", f"{SITE}/numpy/_core/numeric.py:30 ones"), "app.py:1 main"),
        (("app.py:1 main", f"{SITE}/numpy/a.py:3 f", "/w/src/forebay/runtime/tensor.py:8 empty"), "app.py:1 main"),
        (("app.py:1 main", f"{SITE}/scipy/fft.py:3 fft", f"{SITE}/numpy/a.py:3 f"), f"{SITE}/scipy/fft.py:3 fft"),
        (("/home/me/numpy/app.py:4 main",), "/home/me/numpy/app.py:4 main"),
        (("<string>:1 <module>",), "<string>:1 <module>"),
        ((f"{SITE}/numpy/a.py:3 f", f"{SITE}/numpy/b.py:4 g"), f"{SITE}/numpy/b.py:4 g"),
        ((), "(no stack)"),
    ],
)
def test_the_site_is_the_innermost_line_that_allocates_for_itself(calls: tuple[str, ...], label: str) -> None:
    scene = Scene()
    scene.take(512, scene.stack(*calls))
    assert [use.label for use in analysis_summary.sites(scene.snapshot())] == [label]


def test_a_very_deep_stack_is_followed_to_its_end() -> None:
    scene = Scene()
    scene.take(512, scene.stack("app.py:1 main", *(f"{SITE}/numpy/a.py:{line} f" for line in range(1, 2000))))
    assert [use.label for use in analysis_summary.sites(scene.snapshot())] == ["app.py:1 main"]


def test_sites_at_the_peak_and_at_another_moment() -> None:
    scene = Scene()
    first = scene.take(3 * MIB, scene.stack("a.py:1 f"))
    scene.take(MIB, scene.stack("b.py:2 g"))
    scene.give(first)
    snapshot = scene.snapshot()
    at_peak, now = analysis_summary.sites(snapshot), analysis_summary.sites(snapshot, at=len(snapshot.trace))
    assert at_peak == [
        analysis_summary.SiteUse("a.py:1 f", Frame("a.py", "f", 1), 3 * MIB, 1, 3 * MIB, 0.75),
        analysis_summary.SiteUse("b.py:2 g", Frame("b.py", "g", 2), MIB, 1, MIB, 0.25),
    ]
    assert [use.label for use in now] == ["b.py:2 g"]


def test_what_was_there_before_recording_says_so() -> None:
    scene = Scene()
    block = scene.take(512, scene.stack("a.py:1 f"))
    scene.give(block, scene.stack("a.py:9 free"))
    assert [use.label for use in analysis_summary.sites(scene.snapshot(lost=2))] == ["(before recording)"]


def test_totals_count_what_came_and_how_long_it_stayed() -> None:
    scene = Scene()
    for wait in (100, 300):
        block = scene.take(1000, scene.stack("a.py:1 f"))
        scene.tick(wait)
        scene.give(block)
    scene.take(7, scene.stack("a.py:2 kept"))
    assert analysis_summary.totals(scene.snapshot()) == [
        analysis_summary.SiteTotal("a.py:1 f", Frame("a.py", "f", 1), 2, 2000, 200.0),
        analysis_summary.SiteTotal("a.py:2 kept", Frame("a.py", "kept", 2), 1, 7, None),
    ]


@given(steps)
def test_sites_share_out_exactly_what_is_allocated(steps: list[tuple[int, int]]) -> None:
    snapshot = told(steps)
    timeline = reconstruct(snapshot)
    assert sum(use.live_bytes for use in analysis_summary.sites(snapshot)) == timeline.allocated.max()
    assert (
        sum(whole.allocations for whole in analysis_summary.totals(snapshot))
        == analysis_summary.summary(snapshot).allocations
    )


def test_the_summary_of_a_run_that_ended_out_of_memory() -> None:
    snapshot = training()
    numbers = analysis_summary.summary(snapshot)
    (full,) = analysis_summary.ooms(snapshot)
    assert numbers.ooms == 1
    assert full.wanted > full.device_free
    assert numbers.current <= numbers.peak <= numbers.peak_reserved <= snapshot.capacity
    assert numbers.per_second == numbers.allocations * 1e9 / numbers.span_ns


def test_a_peak_before_the_history_is_taken_from_the_statistics() -> None:
    scene = Scene()
    scene.take(MIB)
    numbers = analysis_summary.summary(scene.snapshot(stats={"requested_bytes.all.peak": 5 * MIB}))
    assert (numbers.peak, numbers.peak_ever) == (MIB, 5 * MIB)


def test_without_a_history_the_statistics_tell() -> None:
    stats = {
        "requested_bytes.all.peak": 5 * MIB,
        "allocation.all.allocated": 40,
        "allocation.all.freed": 38,
        "num_ooms": 1,
    }
    numbers = analysis_summary.summary(Scene().snapshot(stats=stats, notes={"seconds": 4.0}))
    assert (numbers.peak, numbers.allocations, numbers.frees, numbers.per_second, numbers.ooms) == (
        5 * MIB,
        40,
        38,
        10,
        1,
    )


def test_pages_that_came_and_went_are_reserved_memory() -> None:
    scene = Scene(segment=4 * MIB, growing=True)
    block, kept = scene.take(4 * MIB), scene.take(MIB)
    scene.give(block)
    scene.shrink()
    numbers = analysis_summary.summary(scene.snapshot())
    assert (numbers.reserved, numbers.peak_reserved, numbers.allocations) == (4 * MIB, 8 * MIB, 2)
    assert kept in scene.blocks


def test_fragmentation_is_what_the_largest_free_piece_leaves() -> None:
    scene = Scene(segment=4 * MIB)
    blocks = [scene.take(MIB) for _ in range(4)]
    scene.give(blocks[0])
    assert analysis_summary.summary(scene.snapshot()).fragmentation == 0
    scene.give(blocks[2])
    numbers = analysis_summary.summary(scene.snapshot())
    assert (numbers.largest_free, numbers.fragmentation) == (MIB, 0.5)
    (segment,) = analysis_summary.layout(scene.snapshot())
    assert (segment.used, segment.free, segment.largest, segment.pieces) == (2 * MIB, 2 * MIB, MIB, 4)


def test_labels_cannot_move_a_cursor_or_turn_text_around() -> None:
    assert label_of(Frame("a\x1b[2J\u202e.py", "f\udc80", 3)) == "a\ufffd[2J\ufffd.py:3 f\ufffd"


def test_labels_of_one_folder_are_told_without_it() -> None:
    assert relative(["/h/p/a.py:1 f", "/h/p/sub/b.py:2 g", "(no stack)"]) == (
        "/h/p/",
        ["a.py:1 f", "sub/b.py:2 g", "(no stack)"],
    )
    assert relative(["/a.py:1 f", "/b.py:2 g"]) == ("", ["/a.py:1 f", "/b.py:2 g"])
    assert relative([]) == ("", [])
