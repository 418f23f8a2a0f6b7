"""The text of a comparison."""

from __future__ import annotations

from support.snapshot_scenes import MIB, Scene

from forebay.snapshot.analysis.comparison import compare
from forebay.snapshot.report.comparison_text import comparison_paragraphs


def scene(*sizes: int, name: str = "f"):
    made = Scene()
    for line, nbytes in enumerate(sizes, 1):
        made.allocate(nbytes, made.stack(f"a.py:{line} {name}"))
    return made.snapshot()


def text(before, after, **options) -> list[str]:
    parts = comparison_paragraphs(compare(before, after), **options)
    return [" ".join([part.heading, *part.sentences, *(" | ".join(row) for row in part.rows)]) for part in parts]


def test_totals_and_sites_are_described():
    totals, peak, end = text(scene(MIB, 2 * MIB), scene(4 * MIB, 0 + MIB, MIB))
    assert "The peak of live memory grew by 3.00 MiB, from 3.00 MiB to 6.00 MiB." in totals
    assert "live at the peak | 3.00 MiB | 6.00 MiB | +3.00 MiB | +100.0%" in totals
    assert "2 sites grew by 4.00 MiB, 1 site shrank by 1.00 MiB (1 new)." in peak
    assert "a.py:1 f | 1.00 MiB | 4.00 MiB | +3.00 MiB | 1 | " in peak
    assert "a.py:3 f | 0 B | 1.00 MiB | +1.00 MiB | 0 → 1 | new" in end


def test_equal_snapshots_have_no_changes():
    totals, peak, _ = text(scene(MIB), scene(MIB))
    assert "The peak of live memory is the same, from 1.00 MiB to 1.00 MiB." in totals
    assert peak == "Sites that changed at the peak No site changed."


def test_further_sites_are_summed():
    _, peak, _ = text(scene(), scene(*range(MIB, 9 * MIB, MIB)), rows=3)
    assert "5 other sites | 0 B | 15.00 MiB | +15.00 MiB" in peak


def test_shifted_lines_are_said_to_be():
    made = Scene()
    made.allocate(2 * MIB, made.stack("a.py:7 f"))
    _, peak, _ = text(scene(MIB), made.snapshot())
    assert "1 stack matched only without line numbers and folders; their sites are marked “moved”." in peak
