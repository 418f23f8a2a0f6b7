"""Conversion of checked values: stacks and pools of each device, in time and memory in proportion to the file."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import pytest
from support.snapshot_programs import dumped, program

from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot, Budget
from forebay.snapshot.formats.torch_columns import snapshot_of
from forebay.snapshot.formats.torch_decode import Decoded
from forebay.snapshot.formats.torch_validate import checked_devices

MIB = 1 << 20


def seconds_to_read(stacks, devices):
    frames = [{"filename": "a.py", "name": "f", "line": line} for line in range(stacks)]
    segments = [{"device": each, "address": 0, "total_size": 0, "blocks": []} for each in range(devices)]
    data = pickle.dumps({"stacks": [[frame] for frame in frames], "segments": segments})
    began = time.process_time()
    assert len(torch_pickle.parse(data)) == devices
    return time.process_time() - began


def test_stacks_of_other_devices_take_no_time():
    alone = seconds_to_read(200_000, 1), seconds_to_read(1, 1000)
    assert seconds_to_read(200_000, 1000) < 3 * alone[0] + alone[1]


def converted(value, budget=None):
    (device,) = checked_devices(Decoded(value, budget or Budget()))
    return snapshot_of(device)


def stack_of(frames, **values):
    entry = {"action": "alloc", "addr": 0, "size": 1, "frames": frames}
    return {"segments": [], "device_traces": [[entry | values]]}


def test_frames_have_rows_from_the_outermost():
    frames = [{"filename": "a.py", "name": name, "line": line} for line, name in enumerate("xyx", 1)]
    found = converted(stack_of(frames))
    assert found.strings == ("a.py", "x", "y")
    assert found.frames.tolist() == [(0, 1, 3), (0, 2, 2), (0, 1, 1)]
    assert found.stacks.tolist() == [(0, 0), (0, 0), (1, 1), (2, 2)]
    assert found.trace["stack"].tolist() == [3]


def test_equal_lists_of_different_frames_are_one_stack():
    value = stack_of([{"filename": "a.py", "name": "f", "line": 1}])
    value["device_traces"][0] *= 3
    found = converted(pickle.loads(pickle.dumps(value, 0)))
    assert len(found.stacks) == 2
    apart = [dict(entry, frames=[dict(frame) for frame in entry["frames"]]) for entry in value["device_traces"][0]]
    again = converted({"segments": [], "device_traces": [apart]})
    assert again.stacks.tolist() == found.stacks.tolist()
    assert again.trace.tolist() == found.trace.tolist()


def test_conversion_does_not_change_checked_values():
    value = pickle.loads(dumped(program(steps=60, pools=1, streams=2)))
    for device in checked_devices(Decoded(value, Budget())):
        first, second = snapshot_of(device), snapshot_of(device)
        for table in ("segments", "blocks", "trace", "stacks", "frames"):
            assert getattr(first, table).tolist() == getattr(second, table).tolist()


def test_nodes_of_the_stack_tree_are_counted_before_they_are_made():
    frame = {"filename": "a.py", "name": "f", "line": 1}
    with pytest.raises(BadSnapshot, match="more memory"):
        converted(stack_of([frame] * 1000), Budget(100_000))


LONG_STACK = r"""
import resource
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot
def text(word):
    return b"X" + len(word).to_bytes(4, "little") + word
frame = b"}(" + text(b"filename") + text(b"f") + text(b"name") + text(b"f") + text(b"line") + b"K\x01uq\x00"
stack = b"](h\x00e" + (b"(" + b"h\x00" * 1000 + b"e") * 4000  # a list that grows is left to the reader of values
entry = b"}(" + text(b"action") + text(b"alloc") + text(b"size") + b"K\x01" + text(b"frames") + stack + b"u"
content = b"\x80\x02}(" + text(b"shared") + frame + text(b"segments") + b"]"
content += text(b"device_traces") + b"](](" + entry + b"eeu."
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    torch_pickle.parse(content)
except BadSnapshot as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(content), error)
"""


def test_memory_of_a_long_stack_is_bounded():
    """Each of four million references to one frame is a node of the tree, which takes more than the list."""
    done = subprocess.run([sys.executable, "-c", LONG_STACK], capture_output=True, text=True, check=True, timeout=60)
    kib, size, error = done.stdout.split(maxsplit=2)
    assert "more memory" in error
    assert int(kib) << 10 < 20 * int(size) + 64 * MIB
