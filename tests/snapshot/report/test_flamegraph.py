"""Flame graphs: valid XML for every input, deterministic, boxes at the right place, accepted by a browser."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET

import pytest
from support.report_pages import BROWSER, EVIL

from forebay.snapshot.report.flamegraph import draw

SVG = "{http://www.w3.org/2000/svg}"
FOLDED = "s_0;app.py:1:main;app.py:2:step 3000\ns_0;app.py:1:main;app.py:9:save 1000\ns_0;<gaps> 24\n"


def boxes(folded):
    """Return left, top and width of each box by tooltip."""
    tree = ET.fromstring(draw(folded))
    return {
        group.find(f"{SVG}title").text: tuple(float(group.find(f"{SVG}rect").get(side)) for side in ("x", "y", "width"))
        for group in tree.iter(f"{SVG}g")
    }


def test_boxes_are_above_their_callers():
    found = boxes(FOLDED)
    left, top, width = found["app.py:1:main: 3.91 KiB, 99.4%"]
    step, save = found["app.py:2:step: 2.93 KiB, 74.6%"], found["app.py:9:save: 1000 B, 24.9%"]
    assert (step[0], step[1], save[1]) == (left, top - 18, top - 18)
    assert save[0] == pytest.approx(step[0] + step[2], abs=0.2)
    assert step[2] + save[2] == pytest.approx(width, abs=0.2)
    assert len(found) == 6


def test_equal_stacks_share_a_box():
    assert boxes("a;b 10\na;b 20\n") == boxes("a;b 30\n")


def test_output_is_independent_of_line_order():
    lines = FOLDED.splitlines(keepends=True)
    assert draw("".join(reversed(lines))) == draw(FOLDED) == draw(FOLDED)


@pytest.mark.parametrize("folded", ["", "\n", "nonsense\n", "a;b -5\n", "a 0\n", "a 1.5\n"], ids=repr)
def test_empty_graph_shows_message(folded):
    assert "There is no memory to show." in draw(folded)
    assert boxes(folded) == {}


def test_invisible_boxes_are_omitted():
    found = boxes("a 1000000\nb 1\n")
    assert [name.partition(":")[0] for name in found] == ["all", "a"]


def test_names_are_escaped():
    name = EVIL.replace(";", "").replace("\n", "")
    text = draw(f"{name};\x00\ufffe\uffff 5\n")
    assert text.encode("utf-8")
    tree = ET.fromstring(text)
    drawn = {element.tag.removeprefix(SVG) for element in tree.iter()}
    assert drawn == {"svg", "title", "style", "text", "g", "rect"}
    assert "\u202e" not in text


def test_svg_has_no_external_references():
    assert re.findall(r"https?://[^\"]*", draw(FOLDED)) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|@import|<script|href", draw(FOLDED))


def test_narrow_box_shows_function_only():
    text = draw("a;/folder/file_with_a_long_name.py:12:work 10\na;b 90\n")
    assert ">work<" in text
    assert "file_with_a_long_name.py:12:work: 10 B, 10.0%" in text


def test_deep_stack_is_drawn():
    text = draw(";".join(f"f{n}" for n in range(3000)) + " 5\n")
    assert text.count("<rect") == 3001


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_browser_renders_graph(tmp_path, scheme):
    (tmp_path / "flame.svg").write_text(draw(FOLDED), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += [f"--blink-settings=preferredColorScheme={scheme}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command = [BROWSER, *options, "--dump-dom", (tmp_path / "flame.svg").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert shown.count("<rect") == 6
    assert "parsererror" not in shown
