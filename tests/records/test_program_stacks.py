"""Stacks without the frames of forebay, and equal stacks once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.snapshot_scenes import Scene

from forebay.records.model import FRAME
from forebay.records.program_stacks import program_stacks

OURS = "/opt/conda/lib/python3.11/site-packages/forebay"
START = ("<frozen runpy>:198 _run_module_as_main", f"{OURS}/__main__.py:10 <module>", f"{OURS}/commands/run.py:9 run")


def frames_of(scene: Scene, *rows: int) -> list[list[str]]:
    snapshot = scene.snapshot()
    own = program_stacks(snapshot)
    shown = replace(snapshot, stacks=own.stacks)
    return [[f"{frame.file}:{frame.line}" for frame in shown.stack(int(own.of_stack[row]))] for row in rows]


def test_frames_of_forebay_and_of_its_start_are_left_out() -> None:
    scene = Scene()
    row = scene.stack(*START, "train.py:3 main", "lib.py:4 f", f"{OURS}/interop/numpy.py:1 allocate")
    assert frames_of(scene, row) == [["lib.py:4", "train.py:3"]]


def test_start_of_a_module_by_the_program_is_kept() -> None:
    scene = Scene()
    row = scene.stack("train.py:3 main", "/usr/lib/python3.11/runpy.py:96 run_path", "other.py:1 <module>")
    assert frames_of(scene, row) == [["other.py:1", "/usr/lib/python3.11/runpy.py:96", "train.py:3"]]


def test_stack_of_forebay_alone_is_empty() -> None:
    scene = Scene()
    assert frames_of(scene, scene.stack(*START), 0) == [[], []]


def test_equal_stacks_are_one() -> None:
    scene = Scene()
    first = scene.stack("train.py:3 main", f"{OURS}/a.py:1 f", "lib.py:4 g")
    second = scene.stack("train.py:3 main", f"{OURS}/b.py:1 f", "lib.py:4 g")
    own = program_stacks(scene.snapshot())
    assert own.of_stack[first] == own.of_stack[second] == 2
    assert len(own.stacks) == 3


def test_equal_frames_in_several_rows_are_one() -> None:
    scene = Scene()
    row = scene.stack("train.py:3 main")
    snapshot = scene.snapshot()
    twice = replace(
        snapshot,
        frames=np.concatenate([snapshot.frames, snapshot.frames]).astype(FRAME),
        stacks=np.concatenate([snapshot.stacks, np.array([(0, 1)], snapshot.stacks.dtype)]),
    )
    own = program_stacks(twice)
    assert own.of_stack.tolist() == [0, row, row, -1]
