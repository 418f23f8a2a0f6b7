"""Zoom and drag of the chart in a real browser: what is under the pointer stays there, and the tooltip follows."""

from __future__ import annotations

import numpy as np
import pytest
from support.browser_pages import CANVAS, LEFT, RIGHT, TIP
from support.report_pages import BROWSER
from support.snapshot_scenes import MIB, Scene, training

from forebay.snapshot.analysis.timeline import reconstruct

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


def test_wheel_zooms_and_drag_moves_the_window(show):
    report = show(training(), address="#axis=entry")
    report.press("p")
    report.hover(0.5, 0.2)
    report.page.mouse.wheel(0, -400)
    report.settle()
    before = report.hash()
    report.page.mouse.down()
    report.page.mouse.move(300, 400, steps=4)
    report.page.mouse.up()
    report.settle()
    after = report.hash()
    assert float(after["from"]) > float(before["from"]) > 0
    width = float(before["to"]) - float(before["from"])
    assert float(after["to"]) - float(after["from"]) == pytest.approx(width, abs=1e-6)


def uneven():
    """Return a history with long pauses, where the edges of a window are between two entries."""
    scene = Scene(capacity=64 * MIB, segment=4 * MIB)
    for step in range(60):
        scene.advance(1000 if step % 7 else 400_000)
        block = scene.allocate((1 + step % 5) * MIB // 4, scene.stack(f"app.py:{step % 4 + 1} f"))
        if step % 3:
            scene.free(block)
    return scene.snapshot()


@pytest.mark.parametrize("axis", ["time", "entry"])
def test_zoom_keeps_what_is_under_the_pointer_and_the_tooltip_follows(show, axis):
    snapshot = uneven()
    moments = np.arange(len(snapshot.trace) + 1)
    times = reconstruct(snapshot).time_ns
    values = (times - times[0]).astype(float) if axis == "time" else moments.astype(float)
    report = show(snapshot, address=f"#axis={axis}")
    report.page.focus(CANVAS)
    box = report.page.query_selector(CANVAS).bounding_box()
    columns = box["width"] - LEFT - RIGHT
    last = str(len(values) - 1)

    def under(across):
        edges = (float(report.hash().get(name, default)) for name, default in (("from", "0"), ("to", last)))
        low, high = np.interp(list(edges), moments, values)
        return low + across * (high - low), (high - low) / columns

    for across in (0.23, 0.71):
        report.press("0")
        tip = report.hover(across, 0.1)
        pointed, pixel = under(across)
        for turn in (-300, -300, 100):
            report.page.mouse.wheel(0, turn)
            report.settle()
            now, column = under(across)
            assert abs(now - pointed) <= pixel  # events have whole pixels
            shown = int(report.page.get_attribute(TIP, "data-moment"))
            assert values[shown] <= now + column  # drawn in the column under the pointer
            followed = report.hover(across, 0.1)
            assert followed["moment"] == shown
            assert str(followed["row"]) == report.page.get_attribute(TIP, "data-row")
        assert tip["text"]
