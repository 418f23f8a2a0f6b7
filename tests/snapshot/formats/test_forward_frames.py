from __future__ import annotations

import pickle

import numpy as np
import pytest

from forebay.records.model import Frame
from forebay.snapshot.analysis.summary import sites
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot
from forebay.snapshot.formats.forward_frames import NO_FRAME, Forward, forward_path, with_callers

MIB = 1 << 20
FORWARD = [
    '  File "train.py", line 30, in main\n    loss = net(x)\n',
    '  File "net.py", line 12, in forward\n    return softmax(x)\n',
]
BACKWARD = [{"filename": "??", "line": 0, "name": "torch::autograd::generated::SoftmaxBackward0::apply"}]


def of_backward_pass(forward: object, frames: list[dict[str, object]]) -> dict[str, object]:
    own = {"frames": frames, "forward_frames": forward}
    block = {"address": 1 << 40, "size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated", **own}
    segment = {"device": 0, "address": 1 << 40, "total_size": 2 * MIB, "blocks": [block]}
    entries = [
        {"action": "segment_alloc", "addr": 1 << 40, "size": 2 * MIB},
        {"action": "alloc", "addr": 1 << 40, "size": 2 * MIB, **own},
    ]
    return {"segments": [segment], "device_traces": [entries]}


@pytest.mark.parametrize("frames", [[], BACKWARD])
@pytest.mark.parametrize("stream", [True, False])
def test_memory_of_the_backward_pass_is_at_the_line_of_the_forward_pass(frames, stream):
    value = of_backward_pass(FORWARD, frames)
    read = torch_pickle.parse(pickle.dumps(value)) if stream else torch_pickle.snapshots(value)
    assert [(use.frame.file, use.frame.line) for use in sites(read[0])] == [("net.py", 12)]
    stack = int(read[0].blocks["stack"][0])
    assert stack == int(read[0].trace["stack"][1])
    assert [each.name for each in read[0].stack(stack)] == [*(each["name"] for each in frames), "forward", "main"]


@pytest.mark.parametrize("stream", [True, False])
def test_equal_frames_with_other_forward_frames_are_other_stacks(stream):
    value = of_backward_pass(FORWARD, BACKWARD)
    value["device_traces"][0][1] = value["device_traces"][0][1] | {"forward_frames": FORWARD[:1]}
    read = torch_pickle.parse(pickle.dumps(value)) if stream else torch_pickle.snapshots(value)
    assert read[0].blocks["stack"][0] != read[0].trace["stack"][1]
    assert len([*read[0].stack(int(read[0].trace["stack"][1]))]) == 2


@pytest.mark.parametrize("wrong", [3, {"a": 1}, [3], "text", [None]])
@pytest.mark.parametrize("stream", [True, False])
def test_wrong_forward_frames_are_refused(wrong, stream):
    value = of_backward_pass(wrong, BACKWARD)
    with pytest.raises(BadSnapshot):
        torch_pickle.parse(pickle.dumps(value)) if stream else torch_pickle.snapshots(value)


@pytest.mark.parametrize("empty", [[], (), None])
def test_empty_forward_frames_are_none(empty):
    (read,) = torch_pickle.snapshots(of_backward_pass(empty, BACKWARD))
    assert "forward_frames" not in read.notes


def test_text_of_a_frame_is_parsed():
    assert forward_path([*FORWARD, "odd\n", ""]) == [
        Frame("train.py", "main", 30), Frame("net.py", "forward", 12), Frame("", "odd", 0), Frame("", "?", 0),
    ]  # fmt: skip


def test_callers_precede_callees():
    parents, frame_of = np.array([0, 0, 1, 1, 0]), np.array([0, 0, 1, 1, NO_FRAME])
    found = with_callers(parents, frame_of, 2, {3: tuple(FORWARD), 4: tuple(FORWARD)})
    assert (found.parents[1:] < np.arange(1, len(found.parents))).all()
    assert found.forwards == {found.row_of[3]: Forward(2, tuple(FORWARD)), found.row_of[4]: Forward(0, tuple(FORWARD))}
    assert found.frame_of[found.row_of[4]] == 3
