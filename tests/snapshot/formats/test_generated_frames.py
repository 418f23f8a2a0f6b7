from __future__ import annotations

import pickle

import numpy as np
import pytest

from forebay.records.model import FRAME, Frame
from forebay.snapshot.analysis.summary import sites
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.formats.generated_frames import frame_details, generated_place, place_originals

MIB = 1 << 20
TRACE = 'File "train.py", line 5, in main\n    net(x)\n  File "net.py", line 12, in forward\n    return self.linear(x)'


def generated(trace: str) -> dict[str, object]:
    frames = [
        {"filename": "fx_generated_3.py", "line": 4, "name": "forward", "fx_node_op": "call_module",
         "fx_original_trace": trace},
        {"filename": "train.py", "line": 5, "name": "main"},
    ]  # fmt: skip
    block = {"address": 1 << 40, "size": 2 * MIB, "requested_size": 1, "state": "active_allocated", "frames": frames}
    return {"segments": [{"device": 0, "address": 1 << 40, "total_size": 2 * MIB, "blocks": [block]}]}


@pytest.mark.parametrize("stream", [True, False])
def test_memory_of_generated_code_is_at_the_line_of_the_model(stream):
    value = generated(TRACE)
    (read,) = torch_pickle.parse(pickle.dumps(value)) if stream else torch_pickle.snapshots(value)
    assert [(use.frame.file, use.frame.line) for use in sites(read)] == [("net.py", 12)]
    assert [frame.name for frame in read.stack(int(read.blocks["stack"][0]))] == ["forward", "main"]


def test_frames_of_the_tracer_are_no_line_of_the_model():
    tracer = '\n  File "/venv/lib/python3.12/site-packages/torch/fx/proxy.py", line 287, in create_node\n    x'
    (read,) = torch_pickle.snapshots(generated(TRACE + tracer))
    assert next(read.stack(int(read.blocks["stack"][0]))) == Frame("net.py", "forward", 12)


def test_frame_without_a_place_in_its_trace_stays():
    (read,) = torch_pickle.snapshots(generated("no traceback"))
    assert next(read.stack(int(read.blocks["stack"][0]))) == Frame("fx_generated_3.py", "forward", 4)


def test_place_in_the_generated_file_is_kept():
    frames = np.array([(0, 1, 7)], FRAME)
    placed, strings, details = place_originals(frames, ("fx.py", "forward"), {0: {"fx_original_trace": TRACE}})
    assert [strings[placed["file"][0]], strings[placed["name"][0]], int(placed["line"][0])] == ["net.py", "forward", 12]
    assert generated_place(details[0]) == Frame("fx.py", "forward", 7)
    assert frame_details(details[0]) == (("fx_original_trace", TRACE),)


@pytest.mark.parametrize("wrong", [{}, {"generated": 3}, {"generated": ["a", "b", -1]}, {"generated": ["a", "b"]}])
def test_wrong_places_are_ignored(wrong):
    assert generated_place(wrong) is None
