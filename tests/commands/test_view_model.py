"""The state of `forebay view`: moving, zooming, searching, and texts that equal those of the analysis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.annotated_history import annotated
from support.snapshot_scenes import Scene, random_history, steps, training_run

from forebay.commands.view_model import ViewModel
from forebay.snapshot.analysis import summary
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.report.terminal_chart import COLORS


@pytest.fixture
def model():
    return ViewModel(training_run().snapshot())


def test_begins_at_the_peak_with_the_whole_history(model):
    assert (model.first, model.end, model.cursor) == (0, model.last, model.timeline.peak)
    assert model.title() == "cpu with 256.00 MiB · peak 48.00 MiB · out of memory 1 time"


def test_truncated_file_is_named():
    title = ViewModel(Scene().snapshot(notes={"truncated": "it ends"})).title()
    assert title.split(" · ")[2] == "the file is truncated"


def test_sites_equal_the_analysis(model):
    for moment in range(model.timeline.moments):
        model.move_to(moment)
        expected = [(use.live_bytes, use.count) for use in summary.sites(model.snapshot, moment)]
        assert [(row.nbytes, row.blocks) for row in model.sites()] == expected
        assert sum(row.share for row in model.sites()) == pytest.approx(1 if expected else 0)
        for row in model.sites():
            assert model.stack_of_site(row.site)[0].startswith(("8.00 MiB at 0x", "16.00 MiB at 0x"))


def test_stacks_are_complete(model):
    model.move_to(model.timeline.peak)
    site = next(row.site for row in model.sites() if "forward" in row.label)
    assert model.stack_of_site(site)[2:] == ["model.py:20 forward", "train.py:2 main"]
    assert model.stack_of_entry() == ["model.py:20 forward", "train.py:2 main"]


def test_status_names_entry(model):
    assert model.next_oom()
    assert model.status().startswith("allocated 32.00 MiB, reserved 64.00 MiB · entry ")
    assert model.status().endswith(": run out of memory for 1.00 GiB")
    model.move_to(0)
    assert model.status() == f"allocated 0 B, reserved 0 B · before the first of {model.last} entries"
    model.move_to(2)
    assert f" · entry 2 of {model.last}, 0 ns: allocate 8.00 MiB at 0x" in model.status()


def test_search_finds_frames_and_addresses(model):
    model.move_to(0)
    assert model.search("FORWARD")
    assert [row.found for row in model.sites()] == []
    moments = []
    while model.next_match() and model.cursor not in moments:
        moments.append(model.cursor)
    trace = model.snapshot.trace
    forward = model.snapshot.stacks["parent"].argmax()
    assert moments == (np.flatnonzero(trace["stack"] == trace["stack"][model.timeline.peak - 1]) + 1).tolist()
    assert forward
    assert model.next_match(backwards=True)
    assert model.cursor == moments[-1]
    assert model.search("model.py:10")
    model.move_to(model.timeline.peak)
    assert [row.found for row in model.sites()] == [True, False]  # the found one first
    block = int(trace["address"][1])
    assert model.search(hex(block + 100))
    model.move_to(0)
    assert model.next_match()
    assert model.cursor <= 2


@pytest.mark.parametrize("pattern", ["", "  ", "nowhere", "0x", "0xzz", "0x" + "f" * 40, "0x10"])
def test_search_without_match(model, pattern):
    before = model.cursor
    assert not model.search(pattern)
    assert not model.next_match()
    assert model.cursor == before


def test_zoom_keeps_cursor_in_range(model):
    model.move_to(20)
    model.zoom(0.5)
    assert model.end - model.first == round(model.last / 2)
    assert model.first <= 20 <= model.end
    for _ in range(10):
        model.zoom(0.5)
    assert model.end - model.first == 8
    model.move_to(model.last)
    assert (model.first, model.end) == (model.last - 8, model.last)
    model.zoom(1e18)
    assert (model.first, model.end) == (0, model.last)


def test_cursor_reaches_every_column(model):
    model.move_to(0)
    seen = []
    while model.cursor < model.last:
        seen.append(model.cursor)
        model.move_by_columns(1, 10)
        assert model.cursor > seen[-1]
    while model.cursor:
        before = model.cursor
        model.move_by_columns(-1, 10)
        assert model.cursor < before


@given(steps, st.floats(0, 1), st.booleans(), st.integers(1, 60), st.integers(1, 12), st.data())
def test_chart_of_any_history(steps, lost, growing, width, height, data):
    model = ViewModel(random_history(steps, lost, growing))
    model.move_to(data.draw(st.integers(0, model.last)))
    model.zoom(data.draw(st.sampled_from([0.25, 1.0, 4.0])))
    columns = model.columns(width)
    assert columns.layers.shape == (len(COLORS), width)
    assert columns.layers.sum(axis=0).tolist() == model.timeline.allocated[columns.moments].tolist()
    assert (model.timeline.reserved[columns.moments] <= columns.reserved).all()
    lines = model.chart(width, height)
    assert [len(line.plain) for line in lines] == [width] * height
    assert model.status()
    model.sites()


def test_empty_snapshot():
    model = ViewModel(Scene().snapshot())
    assert model.title().endswith("no history was recorded")
    assert (model.sites(), model.stack_of_entry(), model.next_oom()) == ([], [], False)
    model.zoom(0.5)
    model.move_by_columns(1, 10)
    assert len(model.chart(10, 5)) == 5


def test_hostile_names_are_escaped():
    scene = Scene()
    scene.allocate(512, scene.stack("/app/\x1b[31m.py:1 \u202e[b]f"))
    model = ViewModel(scene.snapshot())
    text = model.sites()[0].label + "\n".join(model.stack_of_entry())
    assert not {"\x1b", "\u202e"} & {*text}
    assert "[b]" in text


def test_named_ranges_have_lines_and_steps_are_reached(model):
    assert (model.bands(80), model.next_step(1)) == ([], False)
    steps_ = ViewModel(torch_pickle.snapshots(annotated(4))[0])
    first, second, third = [line.plain for line in steps_.bands(600)]
    assert "ProfilerStep#3" in first
    assert "forward" in second
    assert "phase" in third
    places = [steps_.cursor]
    for count in (-1, -1, 1, 1):
        assert steps_.next_step(count)
        places.append(steps_.cursor)
    assert places[1:] == [31, 18, 31, 31]
    steps_.move_to(20)
    assert ", ProfilerStep#2 > forward: allocate 512 B" in steps_.status()
