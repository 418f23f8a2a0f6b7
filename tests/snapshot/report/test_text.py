"""What the terminal shows: whole at 80 columns, plain in a pipe, and never taken for markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.snapshot_scenes import MIB, Scene, training

from forebay.snapshot.model import Snapshot
from forebay.snapshot.report import text


def shown(snapshot: Snapshot, width: int = 80, terminal: bool = False, rows: int = 10) -> str:
    out = io.StringIO()
    colours = "truecolor" if terminal else "auto"
    console = Console(file=out, width=width, force_terminal=terminal, color_system=colours)
    console.print(text.report(snapshot, rows=rows, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_and_keeps_its_numbers(width: int) -> None:
    lines = shown(training(), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in "".join(lines)
    (scores,) = (line for line in lines if "58 scores" in line)
    assert scores.split()[:3] == ["440.01", "MiB", "14.6%"]
    assert any("out of memory" in line for line in lines)


def test_a_terminal_gets_colour() -> None:
    assert "\x1b[" in shown(training(), terminal=True)


def test_ten_rows_and_the_rest_in_one() -> None:
    scene = Scene()
    for line in range(14):
        scene.take((line + 1) * MIB, scene.stack(f"app.py:{line + 1} f"))
    report = shown(scene.snapshot())
    assert "4 other sites" in report
    assert "app.py:14 f" in report
    assert "app.py:4 f" not in report


def test_names_are_text_and_not_markup() -> None:
    scene = Scene()
    scene.take(512, scene.stack("[red]x.py:1 [bold]f\x1b[2J"))
    report = shown(scene.snapshot(), 120)
    assert "[red]x.py:1 [bold]f\N{REPLACEMENT CHARACTER}[2J" in report


def test_nothing_recorded_and_entries_lost() -> None:
    assert "Top allocation sites" not in shown(Scene().snapshot())
    assert "The first 9 entries of the history were dropped" in shown(Scene().snapshot(lost=9))
    scene = Scene()
    scene.take(MIB)
    assert "5.00 MiB, was before" in shown(scene.snapshot(stats={"requested_bytes.all.peak": 5 * MIB}))


def test_a_narrow_terminal_keeps_the_file_and_the_line() -> None:
    scene = Scene()
    scene.take(MIB, scene.stack("a/long/way/down/train.py:90 Adam.__init__.<locals>.a_function_with_a_long_name"))
    scene.take(MIB, scene.stack("elsewhere/load.py:7 load"))
    report = shown(scene.snapshot(), 60)
    assert "train.py:90 Adam" in report
    assert "largest" not in report.partition("Top allocation")[2]


@pytest.mark.parametrize(
    ("ns", "words"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 µs"), (12_340_000, "12.3 ms"), (100e6, "100 ms"), (4e9, "4.00 s"),
     (200e9, "3 min 20 s"), (7200e9, "2 h 0 min")],
)  # fmt: skip
def test_durations(ns: float, words: str) -> None:
    assert text.format_duration(ns) == words
