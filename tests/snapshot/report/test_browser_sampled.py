"""Pages of sampled arrays, for which no device reserves memory: nothing speaks of segments, in both color schemes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.report_pages import BROWSER
from support.snapshot_scenes import MIB, Scene

from forebay.snapshot.formats import native

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


def sample():
    scene = Scene()
    first = scene.allocate(MIB, scene.stack("app.py:1 f"))
    scene.advance(5)
    scene.allocate(2 * MIB, scene.stack("app.py:2 g"))
    scene.free(first)
    return replace(scene.snapshot(), device="small arrays (sampled)", notes={"sampled": {"mean_bytes": 512 << 10}})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_of_a_sample_names_no_segments(show, scheme):
    report = show(sample(), color_scheme=scheme)
    assert report.figures() == {"allocated, estimated": 3 * MIB}
    assert report.text(".legend").split("\n") == ["app.py:1 f", "app.py:2 g"]
    text = report.text("")
    for word in ("reserved", "Segments", "ragmentation", "free"):
        assert word not in text.replace("freed", "")
    assert "reserved" not in report.hover(0.5, 0.2)["text"]
    report.rows("sites", 2)


def test_viewer_shows_the_same_of_a_sample(browser, tmp_path):
    from support.viewer_pages import ViewerPage

    native.write(sample(), tmp_path / "small.forebay")
    opened = ViewerPage.open(browser, tmp_path)
    opened.choose(tmp_path / "small.forebay")
    assert opened.page.locator(".tile").all_inner_texts()[0].startswith("Peak, estimated\n3.00MiB")
    assert opened.page.locator(".segments").count() == 0
    assert opened.problems == []
