"""The HTML report: deterministic, escaped and well-formed for every history; small for a long one."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from support.changed_programs import Step
from support.page_columns import devices
from support.report_pages import SCENARIOS, render, snapshot_of
from support.snapshot_programs import dumped, program
from support.snapshot_scenes import MIB, Scene, long_run, training

from forebay.errors import Unsupported
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.report import html

PAIRS = [  # colors of text and of what is behind it
    *((text, ground) for text in ("ink", "soft", "accent", "alarm") for ground in ("page", "card")),
    ("alarm", "alarm-card"),
    ("ink", "hover"),
    *(("ink", f"f{number}") for number in range(6)),
]


class Tags(HTMLParser):
    """Parser that collects the elements and checks that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_page_is_well_formed(scenario):
    text = render(snapshot_of(scenario))
    tags = Tags(text)
    assert tags.open == []
    assert "$" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_page_is_deterministic(scenario):
    assert render(snapshot_of(scenario)) == render(snapshot_of(scenario))


def test_text_is_escaped():
    text = render(snapshot_of("evil"))
    tags = Tags(text)
    assert text.encode("utf-8")
    assert [tag for tag, _ in tags.seen].count("script") == 2
    assert not any(tag == "img" for tag, _ in tags.seen)
    assert not any(name.startswith("on") for _, attributes in tags.seen for name in attributes)
    assert "\u202e" not in text


def test_page_has_no_external_references():
    tags = Tags(render(training()))
    assert not any({"src", "href", "action", "data"} & attributes.keys() for _, attributes in tags.seen)
    (policy,) = (a["content"] for _, a in tags.seen if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]


def test_page_explains_the_out_of_memory_event():
    text = render(snapshot_of("training"))
    for words in ("model/head.py:19 project requested 200.00 MiB", "73% of the device", "train.py --config small.toml"):
        assert words in text


@pytest.mark.parametrize("error", [Unsupported("heaps"), OverflowError("too large")])
def test_event_that_cannot_be_explained_is_named(monkeypatch, error):
    def explanation(snapshot, *, replay, others):
        raise error

    monkeypatch.setattr("forebay.snapshot.report.explanation.explanation", explanation)
    text = render(training())
    assert "<h2>Out of memory</h2>" in text
    assert f"head.py:19 project requested 200.00 MiB. The history cannot be explained: {error}." in text


def test_page_shows_changes_that_fit_and_settings():
    text = render(Step().snapshot())
    assert "<h3>Changes of the program that avoid this error</h3>" in text
    assert re.search("<td>with 11 of the 12 blocks of [^<]*layer</td><td>720.00 MiB → 660.00 MiB</td>", text)
    assert "<h3>Allocator settings</h3>" in text
    assert "<code>forebay explain --what-if CHANGE</code>" in text


def test_long_history_is_not_replayed_for_the_page(monkeypatch):
    monkeypatch.setattr("forebay.snapshot.report.page.alarms._REPLAYED", 10)
    text = render(Step().snapshot())
    assert "Changes of the program" not in text
    assert "<code>forebay explain</code> also replays the history" in text


def test_devices_of_one_program_are_compared():
    other = program(1, steps=50, index=1)
    snapshots = [Step().snapshot(), next(each for each in torch_pickle.parse(dumped(other)) if len(each.trace))]
    pages = {}
    for names in (["a", "a"], ["a", "b"]):
        out = io.StringIO()
        html.write_several(snapshots, out, programs=names)
        pages[names[1]] = out.getvalue()
    assert ("lay unused on cuda:1" in pages["a"], "lay unused" in pages["b"]) == (True, False)


def test_page_names_what_the_history_lacks():
    text = render(snapshot_of("lost"))
    assert "The ring buffer dropped the first 2 entries of the history." in text
    assert "1 block is older than the recorded history (1.00 MiB)" in text
    assert "The highest peak, 60.00 MiB, was before the recorded history." in text


def test_contradicting_history_is_named_and_its_peak_limited():
    scene = Scene(capacity=64 * MIB, segment=4 * MIB)
    for _ in range(2):
        scene.allocate(4 * MIB)
    snapshot = scene.snapshot()
    snapshot.trace["nbytes"][3] = snapshot.blocks["requested"][1] = 8 * MIB
    text = render(snapshot)
    assert (
        "The history contradicts its segments: at entry 4 it has 12.00 MiB allocated in 8.00 MiB of segments." in text
    )
    assert "<span>Peak allocated</span><b>8.00<small>MiB</small></b><em>12% of the device</em>" in text


def test_settings_are_shown():
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "max_split_size": -1, "divisions": {"1": 0}}
    notes = {"allocator_settings": settings, "python": "3.13", "pools": {"1": [0, 1]}, "order": "arrival"}
    snapshot = Scene().snapshot(notes=notes)
    text = re.sub("<[^>]+>", " ", render(snapshot))
    assert re.search(r"PYTORCH_CUDA_ALLOC_CONF\s+expandable_segments:True", text)
    assert re.search(r"max_split_size\s+not set\s+divisions\s+not set", text)
    assert " python 3.13 \n" in text
    assert "arrival" not in text
    settings["max_split_size"] = 64 * MIB
    assert re.search(r"max_split_size\s+64.00 MiB", re.sub("<[^>]+>", " ", render(snapshot)))


@pytest.mark.parametrize(("verdict", "kind"), [("fits", "remark"), ("tight", "remark"), ("did not finish", "alarm")])
def test_verdict_of_the_run_is_stated(verdict, kind):
    note = {"verdict": verdict, "heading": "PyTorch: <the heading>", "text": "KeyError: '<1>'."}
    page = render(Scene().snapshot(notes={"verdict": note}))
    assert f'<section class="{kind}" aria-label="Verdict">' in page
    assert "PyTorch: &lt;the heading&gt;" in page
    assert "&lt;1&gt;" in page
    assert "verdict {" not in page  # among the other notes
    assert "Verdict" not in render(Scene().snapshot(notes={"verdict": {**note, "verdict": "perhaps"}}))


def test_truncated_file_is_stated():
    snapshot = Scene().snapshot(notes={"truncated": "the <file> ends"})
    assert '<p class="remark">The snapshot is truncated: the &lt;file&gt; ends.</p>' in render(snapshot)


def test_several_devices_are_on_one_page():
    out = io.StringIO()
    html.write_several([training(), snapshot_of("evil")], out, ["a.pickle · cuda:0", "b.pickle"])
    text = out.getvalue()
    articles = [attributes for tag, attributes in Tags(text).seen if tag == "article"]
    assert ["hidden" in attributes for attributes in articles] == [False, True]
    assert [device["name"] for device in devices(text)] == ["a.pickle · cuda:0", "b.pickle"]
    assert "<title>Memory of 2 devices · forebay</title>" in text


@pytest.mark.slow
def test_page_of_a_million_entries_is_small():
    assert len(render(long_run())) < 15_000_000


@pytest.mark.parametrize(("text", "ground"), PAIRS)
@pytest.mark.parametrize("theme", [0, 1])
def test_text_has_contrast(root, text, ground, theme):
    style = (root / "src/forebay/snapshot/report/page/report.css").read_text()
    colors = {name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    light, dark = sorted((luminance(colors[name][theme]) for name in (text, ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
