"""The progress line of `forebay fit`."""

from __future__ import annotations

import sys
import time

from forebay.commands.fit_progress import FitProgress, fit_progress


def test_line_names_the_cards_that_run_and_their_peaks():
    progress = FitProgress()
    progress.count = 3
    progress.begin("h100")
    progress.begin("t4")
    progress.reached("h100", 3 << 30)
    progress.reached("h100", 2 << 30)
    now = time.monotonic()
    assert progress.line(now + 62) == (
        "forebay: 1:02, 0 of 3 cards done; h100 1:02, peak so far 3.00 GiB; t4 1:02"
    )  # fmt: skip
    progress.end("h100")
    progress.reached("h100", 1)
    progress.done = 1
    assert "h100" not in progress.line(now)
    assert "1 of 3 cards done" in progress.line(now)


def test_nothing_is_printed_into_a_pipe(capsys):
    with fit_progress() as progress:
        assert progress is None
    assert sys.stderr is not None
    assert capsys.readouterr() == ("", "")
