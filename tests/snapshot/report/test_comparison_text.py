"""The text of a comparison."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from support.snapshot_scenes import MIB, Scene

from forebay.snapshot.analysis.comparison import compare
from forebay.snapshot.report.comparison_text import comparison_paragraphs
from forebay.snapshot.report.paragraph_rich import print_paragraphs


def scene(*sizes: int, name: str = "f"):
    made = Scene()
    for line, nbytes in enumerate(sizes, 1):
        made.allocate(nbytes, made.stack(f"a.py:{line} {name}"))
    return made.snapshot()


def text(before, after, **options) -> list[str]:
    parts = comparison_paragraphs(compare(before, after), **options)
    return [" ".join([part.heading, *part.sentences, *(" | ".join(row) for row in part.rows)]) for part in parts]


def test_totals_and_sites_are_described():
    totals, _, peak, end = text(scene(MIB, 2 * MIB), scene(4 * MIB, 0 + MIB, MIB))
    assert "The peak of live memory grew by 3.00 MiB, from 3.00 MiB to 6.00 MiB." in totals
    assert "live at the peak | 3.00 MiB | 6.00 MiB | +3.00 MiB | +100.0%" in totals
    assert "2 sites grew by 4.00 MiB, 1 site shrank by 1.00 MiB (1 new)." in peak
    assert "a.py:1 f | 1.00 MiB | 4.00 MiB | +3.00 MiB | 1 | " in peak
    assert "a.py:3 f | 0 B | 1.00 MiB | +1.00 MiB | 0 → 1 | new" in end


def test_equal_snapshots_have_no_changes():
    totals, _, peak, _ = text(scene(MIB), scene(MIB))
    assert "The peak of live memory is the same, from 1.00 MiB to 1.00 MiB." in totals
    assert peak == "Sites that changed at the peak No site changed."


def test_further_sites_are_summed():
    _, peak, _ = text(scene(), scene(*range(MIB, 9 * MIB, MIB)), rows=3)
    assert "5 other sites | 0 B | 15.00 MiB | +15.00 MiB" in peak


def test_shifted_lines_are_said_to_be():
    made = Scene()
    made.allocate(2 * MIB, made.stack("a.py:7 f"))
    _, _, peak, _ = text(scene(MIB), made.snapshot())
    assert "1 stack matched only without line numbers and folders; their sites are marked “moved”." in peak


def loop(steps: int):
    made = Scene()
    for _ in range(steps):
        made.advance()
        made.free(made.allocate(MIB, made.stack("net.py:1 f")))
        made.free(made.allocate(2 * MIB, made.stack("net.py:2 g")))
    return made.snapshot()


def test_axis_of_both_timelines_is_described():
    _, steps, *_ = text(loop(9), loop(12))
    assert steps.startswith("Live memory over time On one axis, aligned at the steps that both histories repeat (")
    assert steps.endswith("The top is 2.00 MiB of live memory.")
    _, times, *_ = text(loop(9), loop(2))
    assert "On one axis, from the beginning of each history: no common steps were found." in times
    _, entries, *_ = text(loop(9), scene(MIB))
    assert "On one axis of entries, from the beginning of each history: one has no times." in entries
    assert not any("over time" in part for part in text(scene(), scene(MIB)))


def test_curves_are_drawn_in_the_terminal():
    found = compare(loop(9), loop(12))
    console = Console(file=StringIO(), width=60)
    print_paragraphs(console, comparison_paragraphs(found))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    before, after = (next(line for line in lines if line.startswith(f"  {name}  ")) for name in ("before", "after "))
    assert "█" in before
    assert "█" in after
    assert len(before) < len(after) <= 60
    axis = lines[lines.index(after) + 1]
    assert "step" in axis
    assert all(len(line) <= 60 for line in lines)


def test_call_stacks_are_compared_to_a_depth():
    def deep(nbytes: int):
        made = Scene()
        made.allocate(nbytes, made.stack("main.py:1 main", "a.py:2 f", "b.py:3 g"))
        made.allocate(MIB, made.stack("main.py:9 main", "a.py:2 f", "b.py:3 g"))
        return made.snapshot()

    def rows(depth: int):
        parts = comparison_paragraphs(compare(deep(MIB), deep(3 * MIB), depth=depth))
        return [part.rows for part in parts if part.heading == "Call stacks that changed at the peak"]

    assert rows(0) == []
    assert rows(2) == [(("b.py:3 g ← a.py:2 f", "2.00 MiB", "4.00 MiB", "+2.00 MiB", "2 → 2"),)]
    assert rows(3) == [(("b.py:3 g ← a.py:2 f ← main.py:1 main", "1.00 MiB", "3.00 MiB", "+2.00 MiB", "1 → 1"),)]
