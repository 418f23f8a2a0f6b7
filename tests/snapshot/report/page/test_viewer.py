"""The viewer page: its reader has the figures of the Python reader, and its page shows and refuses files."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import file_fuzzing
from support.annotated_history import annotated
from support.browser_pages import CANVAS, FILLED
from support.report_pages import BROWSER, EVIL, SCENARIOS, snapshot_of
from support.varied_snapshots import varied
from support.viewer_pages import ViewerPage, differences, expected, written

from forebay import snapshot
from forebay.snapshot.formats import native, torch_pickle
from forebay.snapshot.report.page import viewer

in_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
FILES = sorted(Path(__file__).parents[3].joinpath("data/snapshots").iterdir())
SHARED = [Path(__file__).parents[5] / "shared" / name for name in ("data", "repro")]
MIB = 1 << 20
PATHS = (
    "/home/ü/train.py", "C:\\Python312\\Lib\\site-packages\\pandas\\io.py", "<ipython-input-7-9b3a>", "<string>",
    "/opt/conda/lib/python3.11/threading.py", "/tmp/torchinductor_a/x.py", "module.py", "\U0001f600/日本.py",
    "/usr/lib/python3.11/site-packages/x_launcher.py", "a" * 5000, "\ud800\u202e", "/content/<x>.py", "",
)  # fmt: skip
REFUSED = (
    (b"", "neither a forebay snapshot nor"),
    (b"no snapshot", "neither a forebay snapshot nor"),
    (pickle.dumps(print), "would run or import code"),
    (pickle.dumps([1, 2]), "not all of segments are dicts"),
    (pickle.dumps({"a": 1}), "it has no segments"),
    (pickle.dumps({"segments": []}, 0), "forebay convert FILE"),
    (b"\x80\x04](" + b"]" * (8 * MIB) + b"e.", "more memory than a file of its size may"),
    (gzip.compress(b"\x80\x04X\0\0\0\x03" + b"N" * (48 * MIB)), "when it is decompressed"),
    (gzip.compress(b"x")[:-3] + b"abc", "invalid compressed data"),
    (b"PK\x03\x04", "has no end of a zip file"),
    (b"\x28\xb5\x2f\xfd", "forebay report FILE"),
    (b"forebay-running\n", "forebay report FILE"),
)


@pytest.fixture
def page(browser, tmp_path):
    """A viewer page; at the end nothing may have gone wrong in it."""
    opened = ViewerPage.open(browser, tmp_path)
    yield opened
    assert opened.problems == []
    assert opened.page.evaluate("document.body.dataset.error") is None
    opened.page.close()


def compare(page, paths):
    """Return what the page reads otherwise than Python."""
    found = {}
    for path in paths:
        [answer] = page.read(path.read_bytes())
        found[path.name] = (
            [answer["error"]] if "error" in answer else differences(answer["devices"], expected(snapshot.load(path)))
        )
    return {name: texts for name, texts in found.items() if texts}


@in_browser
def test_figures_are_those_of_the_report(page, tmp_path):
    scenes = [replace(snapshot_of(name), device=name[:5]) for name in SCENARIOS]
    for number, each in enumerate([*scenes, *torch_pickle.snapshots(annotated())]):
        native.write(each, tmp_path / f"{number}.forebay")
    (tmp_path / "annotated.pickle").write_bytes(pickle.dumps(annotated()))
    assert compare(page, [*FILES, *sorted(tmp_path.glob("*.[fp]*"))]) == {}


@in_browser
def test_figures_are_those_of_the_report_for_every_kind_of_frame(page):
    contents = [pickle.dumps(varied(seed)) for seed in range(60)]
    found, arrows = {}, set()
    for seed, (content, answer) in enumerate(zip(contents, page.read(*contents), strict=True)):
        wanted = expected(torch_pickle.parse(content))
        arrows |= {arrow for device in wanted for label in device["sites"] for arrow in "→←" if arrow in label}
        if texts := [answer["error"]] if "error" in answer else differences(answer["devices"], wanted):
            found[seed] = texts
    assert found == {}
    assert arrows == {*"→←"}  # sites were split, and nodes have their lines


@in_browser
def test_figures_are_those_of_the_report_in_files_of_others(page):
    paths = [path for folder in SHARED for kind in ("pickle", "pkl", "forebay") for path in folder.rglob(f"*.{kind}*")]
    if not paths:
        pytest.skip("no folder with recorded snapshots is beside the checkout")
    assert compare(page, sorted(paths)) == {}


@in_browser
def test_key_figures_are_those_of_the_summary(page, tmp_path):
    from forebay.snapshot.analysis.summary import summary

    native.write(snapshot_of("lost"), tmp_path / "lost.forebay")
    for path in (*FILES[:4], tmp_path / "lost.forebay"):
        [answer] = page.read(path.read_bytes())
        first, wanted = answer["devices"][0]["summary"], summary(snapshot.load(path)[0])
        assert {name: pytest.approx(getattr(wanted, name)) for name in first} == first


@in_browser
def test_sites_are_those_of_any_path(page):
    for path in PATHS:
        rows = [{"filename": path, "name": name, "line": 7} for name in ("f", "<module>", "at::empty(int)", EVIL)]
        frames = [[row] for row in rows] + [rows]
        entries = [
            {"action": "alloc", "addr": at * MIB, "size": 512 + at, "stream": 0, "frames": each}
            for at, each in enumerate(frames, 1)
        ]
        content = pickle.dumps({"segments": [], "device_traces": [entries]})
        [answer] = page.read(content)
        assert (path, differences(answer["devices"], expected(torch_pickle.parse(content)))) == (path, [])


@in_browser
def test_damaged_files_are_read_equally_or_refused_with_a_reason(page, tmp_path):
    contents = [*file_fuzzing.seeds(), *itertools.islice(file_fuzzing.mutations(7), 150)]
    refused, equal = [], 0
    for content, answer in zip(contents, page.read(*contents), strict=True):
        try:
            wanted = file_fuzzing.read(content, tmp_path / "file")
        except native.BadSnapshot:
            wanted = None
        if "error" in answer:
            refused.append(answer["error"])
        elif wanted is not None:
            assert differences(answer["devices"], expected(wanted)) == []
            equal += 1
    assert equal > 5
    wrong = re.compile(r"TypeError|ReferenceError|undefined|exception|no answer|has stopped")
    assert [text for text in refused if wrong.search(text) or not text] == []


@in_browser
def test_hostile_file_is_one_sentence(page):
    for content, reason in REFUSED:
        page.choose({"name": "<b>file\u202e", "mimeType": "", "buffer": content})
        text = page.page.inner_text(".problem")
        assert text.startswith("<b>file\\u202e: ")
        assert reason in text
        assert "\n" not in text
        assert page.page.query_selector_all("article") == []


@in_browser
def test_truncated_pickle_shows_what_precedes_its_end(page):
    content = gzip.decompress(FILES[0].read_bytes())
    for whole in (content, gzip.compress(content)):
        page.choose({"name": "a", "mimeType": "", "buffer": whole[: int(0.9 * len(whole))]})
        assert "The snapshot is truncated: the file ends after" in page.page.inner_text(".remark >> nth=0")


@in_browser
def test_file_is_shown_and_replaced_by_the_next(page):
    from playwright.sync_api import expect

    page.choose(FILES[[each.name for each in FILES].index("out_of_memory.pickle.gz")])
    page.page.wait_for_selector(FILLED, state="attached")
    assert "Out of memory" in page.page.inner_text(".alarm h2")
    assert "forebay tune out_of_memory.pickle.gz" in page.page.inner_text(".commands")
    page.page.focus(CANVAS)
    page.page.keyboard.press("ArrowLeft")
    expect(page.page).to_have_url(re.compile("#moment="))
    page.choose(FILES[[each.name for each in FILES].index("two_devices_and_streams.pickle.gz")])
    page.page.wait_for_selector(FILLED, state="attached")
    assert page.page.evaluate("location.hash") == ""
    assert page.page.locator("nav.devices button").count() == page.page.locator("article").count() == 2
    assert page.page.query_selector_all(".alarm") == []


@in_browser
def test_file_can_be_dropped(page):
    page.page.evaluate(
        """(content) => {
          const moved = new DataTransfer();
          moved.items.add(new File([Uint8Array.from(content)], "dropped"));
          document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true, cancelable: true}));
        }""",
        [*FILES[0].read_bytes()],
    )
    page.page.wait_for_selector("body[data-ready]", state="attached")
    assert page.page.inner_text(".state").startswith("dropped, ")


@in_browser
@pytest.mark.parametrize("way", ["button", "Escape"])
def test_reading_can_be_cancelled(page, way):
    page.page.evaluate("Worker.prototype.postMessage = () => undefined")  # a worker that never answers
    page.page.set_input_files("#file", FILES[0])
    page.page.wait_for_selector(".busy button:not([hidden])")
    if way == "button":
        page.page.click(".busy button")
    else:
        page.page.keyboard.press(way)
    assert page.page.inner_text(".state") == "Cancelled."
    assert not page.page.is_visible(".busy button")


@in_browser
def test_names_in_a_file_are_text(page, tmp_path):
    native.write(replace(snapshot_of("evil"), device="evil"), tmp_path / "evil.forebay")
    page.choose(tmp_path / "evil.forebay")
    page.page.wait_for_selector(FILLED, state="attached")
    assert page.page.query_selector_all("main img, article script") == []
    assert "\u202e" not in page.page.inner_text("main")


def test_page_has_one_permitted_script_and_names_no_other_source():
    page = written()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src" not in policy
    assert "img-src" not in policy
    assert re.findall(r"\b(?:src|href)=|https?://(?!www\.w3\.org)", page) == []
    assert page.count("<script") == page.count("</script>") == 4
    assert page == written()


def test_rules_are_plain_and_complete():
    rules = viewer.rules()
    assert json.loads(json.dumps(rules)) == rules
    used = Path(__file__).parents[4].joinpath("report-page/src/viewer").glob("*.ts")
    named = {name for path in used for name in re.findall(r'patterns\.(?:of|test)\("(\w+)"', path.read_text())}
    assert named == {*rules["expressions"]}
