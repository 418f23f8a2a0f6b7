"""Sites, totals, summary and segment layout, each with a minimal scene."""

from __future__ import annotations

import pytest
from hypothesis import given
from support.snapshot_scenes import MIB, Scene, random_history, steps, training

from forebay.records.model import Frame
from forebay.records.site_labels import label_of, strip_common_folder
from forebay.snapshot.analysis import summary as analysis_summary
from forebay.snapshot.analysis.timeline import reconstruct

PACKAGES = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("calls", "label"),
    [
        (("app.py:1 main", "app.py:9 load"), "app.py:9 load"),
        (("app.py:1 main", f"{PACKAGES}/numpy/_core/numeric.py:30 ones"), "app.py:1 main"),
        (
            ("app.py:1 main", f"{PACKAGES}/numpy/a.py:3 f", "/w/src/forebay/runtime/tensor.py:8 empty"),
            "app.py:1 main",
        ),
        (
            ("app.py:1 main", f"{PACKAGES}/scipy/fft.py:3 fft", f"{PACKAGES}/numpy/a.py:3 f"),
            "app.py:1 main",
        ),
        (("/home/me/numpy/app.py:4 main",), "/home/me/numpy/app.py:4 main"),
        (("<string>:1 <module>",), "<string>:1 <module>"),
        ((f"{PACKAGES}/numpy/a.py:3 f", f"{PACKAGES}/numpy/b.py:4 g"), "numpy/b.py:4 g"),
        ((), "(no stack)"),
    ],
)
def test_site_is_innermost_frame_of_the_users_own_code(calls: tuple[str, ...], label: str) -> None:
    scene = Scene()
    scene.allocate(512, scene.stack(*calls))
    assert [use.label for use in analysis_summary.sites(scene.snapshot())] == [label]


def test_site_of_very_deep_stack() -> None:
    scene = Scene()
    scene.allocate(512, scene.stack("app.py:1 main", *(f"{PACKAGES}/numpy/a.py:{line} f" for line in range(1, 2000))))
    assert [use.label for use in analysis_summary.sites(scene.snapshot())] == ["app.py:1 main"]


def test_sites_at_peak_and_at_given_moment() -> None:
    scene = Scene()
    first = scene.allocate(3 * MIB, scene.stack("a.py:1 f"))
    scene.allocate(MIB, scene.stack("b.py:2 g"))
    scene.free(first)
    snapshot = scene.snapshot()
    at_peak, now = analysis_summary.sites(snapshot), analysis_summary.sites(snapshot, at=len(snapshot.trace))
    assert at_peak == [
        analysis_summary.SiteUse("a.py:1 f", Frame("a.py", "f", 1), 3 * MIB, 1, 3 * MIB, 0.75),
        analysis_summary.SiteUse("b.py:2 g", Frame("b.py", "g", 2), MIB, 1, MIB, 0.25),
    ]
    assert [use.label for use in now] == ["b.py:2 g"]


def test_site_of_block_from_before_recording() -> None:
    scene = Scene()
    block = scene.allocate(512, scene.stack("a.py:1 f"))
    scene.free(block, scene.stack("a.py:9 free"))
    assert [use.label for use in analysis_summary.sites(scene.snapshot(lost=2))] == ["(before recording)"]


def test_totals_have_counts_and_mean_lifetimes() -> None:
    scene = Scene()
    for wait in (100, 300):
        block = scene.allocate(1000, scene.stack("a.py:1 f"))
        scene.advance(wait)
        scene.free(block)
    scene.allocate(7, scene.stack("a.py:2 kept"))
    assert analysis_summary.totals(scene.snapshot()) == [
        analysis_summary.SiteTotal("a.py:1 f", Frame("a.py", "f", 1), 2, 2000, 200.0),
        analysis_summary.SiteTotal("a.py:2 kept", Frame("a.py", "kept", 2), 1, 7, None),
    ]


@given(steps)
def test_site_bytes_add_up_to_allocated_bytes(steps: list[tuple[int, int]]) -> None:
    snapshot = random_history(steps)
    timeline = reconstruct(snapshot)
    assert sum(use.live_bytes for use in analysis_summary.sites(snapshot)) == timeline.allocated.max()
    assert (
        sum(whole.allocations for whole in analysis_summary.totals(snapshot))
        == analysis_summary.summary(snapshot).allocations
    )


def test_summary_of_out_of_memory_run() -> None:
    snapshot = training()
    numbers = analysis_summary.summary(snapshot)
    (full,) = analysis_summary.ooms(snapshot)
    assert numbers.ooms == 1
    assert full.wanted > full.device_free
    assert numbers.current <= numbers.peak <= numbers.peak_reserved <= snapshot.capacity
    assert numbers.per_second == numbers.allocations * 1e9 / numbers.span_ns


@pytest.mark.parametrize(("requested", "expected"), [(MIB, 3 * MIB), (5 * MIB, MIB)])
def test_allocated_bytes_are_those_in_blocks(requested, expected) -> None:
    """Compare with the statistics, unless their peak was before the history."""
    scene = Scene()
    scene.allocate(MIB)
    stats = {"allocated_bytes.all.peak": 3 * MIB, "allocated_bytes.all.current": 2 * MIB}
    stats["requested_bytes.all.peak"] = requested
    numbers = analysis_summary.summary(scene.snapshot(stats=stats))
    assert (numbers.peak, numbers.current) == (MIB, MIB)
    assert (numbers.peak_allocated, numbers.allocated) == (expected, 2 * MIB)
    numbers = analysis_summary.summary(scene.snapshot(stats={}))
    assert (numbers.peak_allocated, numbers.allocated) == (MIB, MIB)


def test_peak_before_history_is_from_statistics() -> None:
    scene = Scene()
    scene.allocate(MIB)
    numbers = analysis_summary.summary(scene.snapshot(stats={"requested_bytes.all.peak": 5 * MIB}))
    assert (numbers.peak, numbers.peak_ever) == (MIB, 5 * MIB)


def test_peak_of_the_statistics_includes_pending_frees() -> None:
    scene = Scene()
    blocks = [scene.allocate(MIB)]
    for _ in range(3):  # the frees complete after the next allocation
        blocks.append(scene.allocate(MIB))
        scene.free(blocks.pop(0))
        completed = scene.entries.pop()
        scene.allocate(MIB)
        scene.entries.append(completed)
    numbers = analysis_summary.summary(scene.snapshot(stats={"requested_bytes.all.peak": 5 * MIB}))
    assert (numbers.peak, numbers.peak_ever) == (4 * MIB, 4 * MIB)
    numbers = analysis_summary.summary(scene.snapshot(stats={"requested_bytes.all.peak": 6 * MIB}))
    assert (numbers.peak, numbers.peak_ever) == (4 * MIB, 6 * MIB)


def test_summary_without_history_uses_statistics() -> None:
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


def test_mapped_pages_count_as_reserved() -> None:
    scene = Scene(segment=4 * MIB, growing=True)
    block, kept = scene.allocate(4 * MIB), scene.allocate(MIB)
    scene.free(block)
    scene.release_free_segments()
    numbers = analysis_summary.summary(scene.snapshot())
    assert (numbers.reserved, numbers.peak_reserved, numbers.allocations) == (4 * MIB, 8 * MIB, 2)
    assert kept in scene.blocks


def test_fragmentation_is_share_outside_largest_free_block() -> None:
    scene = Scene(segment=4 * MIB)
    blocks = [scene.allocate(MIB) for _ in range(4)]
    scene.free(blocks[0])
    assert analysis_summary.summary(scene.snapshot()).fragmentation == 0
    scene.free(blocks[2])
    numbers = analysis_summary.summary(scene.snapshot())
    assert (numbers.largest_free, numbers.fragmentation) == (MIB, 0.5)
    (segment,) = analysis_summary.layout(scene.snapshot())
    assert (segment.used, segment.free, segment.largest, segment.pieces) == (2 * MIB, 2 * MIB, MIB, 4)


def test_label_replaces_control_characters() -> None:
    assert label_of(Frame("a\x1b[2J\u202e.py", "f\udc80", 3)) == r"a\x1b[2J\u202e.py:3 f\udc80"


def test_common_folder_is_stripped() -> None:
    assert strip_common_folder(["/h/p/a.py:1 f", "/h/p/sub/b.py:2 g", "(no stack)"]) == (
        "/h/p/",
        ["a.py:1 f", "sub/b.py:2 g", "(no stack)"],
    )
    assert strip_common_folder(["/a.py:1 f", "/b.py:2 g"]) == ("", ["/a.py:1 f", "/b.py:2 g"])
    assert strip_common_folder([]) == ("", [])
