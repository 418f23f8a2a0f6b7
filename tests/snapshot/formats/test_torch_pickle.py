"""PyTorch snapshot pickles: all versions are read, damaged and malicious files are rejected, nothing is executed."""

from __future__ import annotations

import os
import pickle
import pickletools
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshot_programs import MIB, dumped, minimal_snapshot, program

from forebay import simulate, snapshot
from forebay.records.model import Action, Frame, State
from forebay.snapshot.formats import native, safe_pickle, torch_pickle
from forebay.snapshot.formats.native import BadSnapshot


def read(value):
    (found,) = torch_pickle.parse(dumped(value))
    return found


def test_all_values_are_converted():
    value = minimal_snapshot(
        allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": 64 * MIB}
    )
    value["device_traces"][0][1] |= {"user_metadata": "step 3", "compile_context": "0/1"}
    found = read(value)
    assert found.device == "cuda:0"
    assert found.segments.tolist() == [(1 << 32, 2 * MIB, 5, 0, 1, 1, 0)]
    assert found.blocks["state"].tolist() == [State.LIVE, State.FREE]
    assert found.blocks["requested"].tolist() == [100, 0]
    assert found.trace["action"].tolist() == [Action.RESERVE, Action.ALLOC]
    assert found.trace["time_ns"].tolist() == [1_700_000_000_000_000_000] * 2
    assert list(found.stack(int(found.trace["stack"][1]))) == [
        Frame("net.py", "forward", 7),
        Frame("train.py", "main", 3),
    ]
    assert found.labels == (("0/1", "step 3"),)
    assert found.trace["note"].tolist() == [0, 1]
    assert found.notes["pools"] == {"1": [0, 3]}
    assert found.notes["allocator_settings"]["max_split_size"] == 64 * MIB


@pytest.mark.parametrize("invalid", [3, {"recommended": "1 GiB"}, {1: 2}, {"recommended": {}}])
@pytest.mark.parametrize("key", ["heaps", "roundup_power2_divisions"])
def test_invalid_settings_are_ignored(key, invalid):
    notes = read(minimal_snapshot(allocator_settings={key: invalid, "max_split_size": 64 * MIB})).notes
    assert notes["allocator_settings"] == {"max_split_size": 64 * MIB}
    assert "heaps" not in notes


def test_missing_values_of_older_versions_are_reconstructed():
    """PyTorch 2.0 records neither times, nor pools, nor block addresses."""
    value = minimal_snapshot()
    del value["external_annotations"]
    for entry in value["device_traces"][0]:
        del entry["time_us"], entry["pool_id"]
    for block in value["segments"][0]["blocks"]:
        del block["address"]
    found = read(value)
    assert found.blocks["address"].tolist() == [1 << 32, (1 << 32) + 512]
    assert found.trace["time_ns"].tolist() == [0, 0]
    assert found.trace["pool"].tolist() == [1, 1]  # its segment is in a private pool
    assert "order" not in found.notes


def test_history_of_blocks_of_older_versions_has_their_frames():
    """PyTorch 2.0 records frames and sizes in the history of a block, the latest allocation first."""
    value = minimal_snapshot(device_traces=[])
    blocks = value["segments"][0]["blocks"]
    for block in blocks:
        del block["address"], block["requested_size"]
        frames, earlier = block.pop("frames"), {"filename": "earlier.py", "line": 1, "name": "first"}
        block["history"] = [
            {"addr": 1 << 32, "real_size": 100, "frames": frames},
            {"addr": 1 << 32, "real_size": 7, "frames": [earlier]},
        ]
    found = read(value)
    assert found.blocks["requested"].tolist() == [100, 2 * MIB - 512]
    assert [frame.file for frame in found.stack(int(found.blocks["stack"][0]))] == ["net.py", "train.py"]
    assert found.blocks["stack"][1] == 0


def test_list_of_segments_has_no_history():
    assert len(read(minimal_snapshot()["segments"]).trace) == 0


def test_unknown_actions_are_ignored():
    value = minimal_snapshot()
    value["device_traces"][0].insert(1, {"action": "invented", "addr": 0, "size": 0, "stream": 0, "time_us": 1})
    value["device_traces"][0].insert(1, {"action": "user_defined", "addr": 0, "size": 0, "stream": 0, "time_us": 1})
    assert read(value).trace["action"].tolist() == [Action.RESERVE, Action.ANNOTATE, Action.ALLOC]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_all_pickle_protocols_are_read(protocol):
    (found,) = torch_pickle.parse(dumped(minimal_snapshot(), protocol))
    assert found.strings == ("train.py", "main", "net.py", "forward")


def test_load_detects_format_by_content(tmp_path):
    torch_file, own_file = tmp_path / "a.forebay", tmp_path / "b.pickle"  # the suffixes are misleading
    torch_file.write_bytes(dumped(minimal_snapshot()))
    (found,) = snapshot.load(torch_file)
    native.write(found, own_file)
    (again,) = snapshot.load(own_file)
    assert again.trace.tolist() == found.trace.tolist()
    assert again.notes == dict(found.notes)


@pytest.mark.parametrize("content", [b"", b"PK", b"hello", b"\x7fELF\x02\x01\x01", b"\x80", b"\x80\x04", b"(", b"}"])
def test_unknown_format_is_reported_in_one_line(tmp_path, content):
    path = tmp_path / "strange"
    path.write_bytes(content)
    with pytest.raises(BadSnapshot, match="strange: ") as caught:
        snapshot.load(path)
    assert "\n" not in str(caught.value)


# Damaged and malicious files


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Canary:
    touched = False

    @classmethod
    def touch(cls, *_):
        cls.touched = True


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, print, Canary, threading.Thread])
def test_pickle_that_calls_functions_is_rejected(protocol, function, tmp_path):
    mark = tmp_path / "mark"
    attack = Calls(function, f"touch {mark}")
    for value in (attack, minimal_snapshot(extra=attack), minimal_snapshot(segments=[attack]), [attack]):
        with pytest.raises(BadSnapshot, match=r"not plain data: at byte \d+ it (names a|calls|creates)|invalid pickle"):
            torch_pickle.parse(dumped(value, protocol))
    assert not mark.exists()


def test_named_module_is_not_imported():
    with pytest.raises(BadSnapshot, match="names a global"):
        torch_pickle.parse(b"\x80\x02cantigravity\nfly\n)R.")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "instructions",
    [
        b"cos\nsystem\n(S'true'\ntR",
        b"(S'true'\nios\nsystem\n",
        b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R",
        b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00",  # extensions
        b"P0\n", b"K\x01Q",  # persistent ids
        b"\x97", b"\x98", b"\x96\x00\x00\x00\x00\x01\x00\x00\x00",  # buffers
        b"]\x81", b"}b", b"C\x01a", b"\x8b\x04\x00\x00\x00aaaa", b"\xff",
    ],
)  # fmt: skip
def test_opcodes_other_than_plain_values_are_rejected(instructions):
    with pytest.raises(BadSnapshot, match=r"not plain data|invalid pickle"):
        safe_pickle.load(b"\x80\x04" + instructions + b".")


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04]r\xff\xff\xff\x7f.",  # a memo of 32 GiB
        b"\x80\x04]r\x00\x00\x00\x10.",
        b"]p99999999999\n.",
        b"\x80\x04\x8d\x00\x00\x00\x00\x10\x00\x00\x00aa.",  # a string of 64 GiB
        b"\x80\x04X\xff\xff\xff\x7fa.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\x00\x00].",  # a frame of petabytes
        b"L" + b"9" * 100_000 + b"L\n.",  # parsing takes quadratic time
        b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",  # deeply nested
    ],
)
def test_small_file_needs_little_memory(bomb):
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(BadSnapshot):
            torch_pickle.parse(bomb)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


WHOLE = dumped(minimal_snapshot())
LARGER = dumped(program(steps=60, streams=2, pools=1))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_file_raises_only_bad_snapshot(data):
    content = bytearray(data.draw(st.sampled_from([WHOLE, LARGER])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]))
        if change == "flip":
            content[at] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del content[max(at, 1) :]
        elif change == "insert":
            content[at:at] = data.draw(st.binary(max_size=8))
        elif len(content) > 1:
            del content[at]
    try:
        found = torch_pickle.parse(bytes(content))
    except BadSnapshot:
        return
    for each in found:
        native.check(each)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(pickletools.opcodes), max_size=40), st.binary())
def test_random_opcodes_raise_only_bad_snapshot(instructions, tail):
    codes = b"".join(instruction.code.encode("latin-1") for instruction in instructions)
    with suppress(BadSnapshot):
        safe_pickle.load(b"\x80\x04" + codes + tail + b".")


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
), st.integers(0, pickle.HIGHEST_PROTOCOL))  # fmt: skip
def test_plain_values_are_unpickled(value, protocol):
    assert safe_pickle.load(pickle.dumps(value, protocol)) == value


def test_equal_stacks_are_stored_once():
    value = minimal_snapshot()
    frame = value["device_traces"][0][0]["frames"][0]
    value["device_traces"][0] = [
        value["device_traces"][0][0] | {"action": "snapshot", "frames": [dict(frame), dict(frame)]} for _ in range(1000)
    ]
    found = read(value)
    assert len(found.frames) == 2
    assert len(np.unique(found.trace["stack"])) == 1


def test_snapshot_of_simulated_device_is_read():
    gpu = simulate.Device(1 << 30, "expandable_segments:True")
    gpu.record_history(context=None)
    gpu.allocate(100)
    found = read(gpu.snapshot())
    assert found.segments["growing"].tolist() == [1]
    assert found.trace["action"].tolist() == [Action.MAP, Action.ALLOC]
    assert found.notes["order"] == "arrival"
    assert struct.calcsize("Q") == found.trace["address"].itemsize


def test_unreadable_file_raises_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        snapshot.load(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        snapshot.load(Path(tmp_path))
