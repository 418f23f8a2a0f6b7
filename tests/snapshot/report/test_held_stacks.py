"""Files of stacks: the bytes equal those of the timeline, and names from files are harmless."""

from __future__ import annotations

import io
import json

import pytest
from support.snapshot_scenes import Scene
from support.synthetic_history import synthetic

from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.report import held_stacks


def written(write, *snapshots):
    out = io.StringIO()
    write(snapshots, out)
    return out.getvalue()


@pytest.fixture(scope="module")
def history():
    return synthetic(5_000)


def test_bytes_are_those_of_the_peak(history):
    peak = int(reconstruct(history).allocated.max())
    assert sum(nbytes for _, nbytes in held_stacks.held_stacks(history)) == peak
    lines = written(held_stacks.write_folded, history).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == peak
    assert all(line.startswith("cuda:0;main (train.py:41)") for line in lines)
    tree = json.loads(written(held_stacks.write_flamegraph, history))
    assert tree["value"] == peak
    assert [child["name"] for child in tree["children"]] == ["cuda:0"]


def test_values_of_children_do_not_exceed_their_parent(history):
    def check(node):
        assert sum(child["value"] for child in node["children"]) <= node["value"]
        for child in node["children"]:
            check(child)

    check(json.loads(written(held_stacks.write_flamegraph, history, history)))


def test_speedscope_has_the_peak_and_the_end(history):
    found = json.loads(written(held_stacks.write_speedscope, history))
    timeline = reconstruct(history)
    assert [profile["name"] for profile in found["profiles"]] == ["cuda:0 at the peak", "cuda:0 at the end"]
    assert [profile["endValue"] for profile in found["profiles"]] == [
        int(timeline.allocated.max()), int(timeline.allocated[-1])
    ]  # fmt: skip
    for profile in found["profiles"]:
        assert sum(profile["weights"]) == profile["endValue"]
        assert max(map(max, profile["samples"])) < len(found["shared"]["frames"])
    first = [found["shared"]["frames"][at]["name"] for at in found["profiles"][0]["samples"][0]]
    assert first[0] == "main"  # outermost first


def test_deep_stacks_and_control_characters_are_shortened():
    scene = Scene()
    scene.allocate(1000, scene.stack(*(f"a\x1b;{at}.py:{at} f{at}" for at in range(5_000))))
    found = scene.snapshot()
    line = written(held_stacks.write_folded, found)
    assert "\x1b" not in line
    assert line.count(";") == 201
    assert "… (outer frames)" in line
    json.loads(written(held_stacks.write_flamegraph, found))


def test_history_without_allocations_is_written():
    found = Scene().snapshot()
    assert written(held_stacks.write_folded, found) == ""
    assert json.loads(written(held_stacks.write_flamegraph, found))["value"] == 0
    assert len(json.loads(written(held_stacks.write_speedscope, found))["profiles"]) == 2


def test_stacks_that_differ_in_frames_of_forebay_are_one_line():
    scene = Scene()
    for line in (1, 2):
        scene.allocate(512, scene.stack("train.py:3 main", f"/x/site-packages/forebay/a.py:{line} f"))
    assert written(held_stacks.write_folded, scene.snapshot()) == "cpu;main (train.py:3) 1024\n"
