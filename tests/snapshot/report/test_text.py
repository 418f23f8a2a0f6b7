"""The terminal report: fits 80 columns, is plain in a pipe, and does not interpret names as markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.snapshot_scenes import MIB, Scene, training

from forebay.records.model import Snapshot
from forebay.snapshot.report import text


def shown(snapshot: Snapshot, width: int = 80, terminal: bool = False, rows: int = 10) -> str:
    out = io.StringIO()
    colours = "truecolor" if terminal else "auto"
    console = Console(file=out, width=width, force_terminal=terminal, color_system=colours)
    console.print(text.report(snapshot, rows=rows, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_report_fits_the_width(width: int) -> None:
    lines = shown(training(), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in "".join(lines)
    (scores,) = (line for line in lines if "58 scores" in line)
    assert scores.split()[:3] == ["440.01", "MiB", "14.6%"]
    assert any("out of memory" in line for line in lines)


def test_terminal_output_is_coloured() -> None:
    assert "\x1b[" in shown(training(), terminal=True)


def test_sites_beyond_ten_share_a_row() -> None:
    scene = Scene()
    for line in range(14):
        scene.allocate((line + 1) * MIB, scene.stack(f"app.py:{line + 1} f"))
    report = shown(scene.snapshot())
    assert "4 other sites" in report
    assert "app.py:14 f" in report
    assert "app.py:4 f" not in report


def test_names_are_not_interpreted_as_markup() -> None:
    scene = Scene()
    scene.allocate(512, scene.stack("[red]x.py:1 [bold]f\x1b[2J"))
    report = shown(scene.snapshot(), 120)
    assert "[red]x.py:1 [bold]f\\x1b[2J" in report


def test_empty_history_lost_entries_and_earlier_peak() -> None:
    assert "Top allocation sites" not in shown(Scene().snapshot())
    assert "The ring buffer dropped the first 9 entries" in shown(Scene().snapshot(lost=9))
    scene = Scene()
    scene.allocate(MIB)
    assert "5.00 MiB, was before" in shown(scene.snapshot(stats={"requested_bytes.all.peak": 5 * MIB}))


def test_narrow_terminal_keeps_file_and_line() -> None:
    scene = Scene()
    scene.allocate(MIB, scene.stack("a/long/way/down/train.py:90 Adam.__init__.<locals>.a_function_with_a_long_name"))
    scene.allocate(MIB, scene.stack("elsewhere/load.py:7 load"))
    report = shown(scene.snapshot(), 60)
    assert "a/long/way/down/train.py:90" in report
    assert "largest" not in report.partition("Top allocation")[2]


@pytest.mark.parametrize(
    ("ns", "words"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 µs"), (12_340_000, "12.3 ms"), (100e6, "100 ms"), (4e9, "4.00 s"),
     (200e9, "3 min 20 s"), (7200e9, "2 h 0 min")],
)  # fmt: skip
def test_durations_are_formatted(ns: float, words: str) -> None:
    assert text.format_duration(ns) == words
