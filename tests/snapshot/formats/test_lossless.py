"""Every public field of PyTorch's snapshot format survives a conversion to forebay's format and back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from forebay import snapshot
from forebay.snapshot.formats import native, torch_pickle, torch_writer

MIB = 1 << 20
GRAD = ['  File "net.py", line 7, in forward\n    y = x.exp()\n', "  no place\n"]


def frame(file: str, line: int, name: str, **details: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name, **details}


def segment(address: int, device: int, blocks: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    live = sum(each["size"] for each in blocks if each["state"] == "active_allocated")
    return {
        "device": device, "address": address, "total_size": sum(each["size"] for each in blocks),
        "allocated_size": live, "active_size": live,
        "requested_size": sum(each["requested_size"] for each in blocks if each["state"] == "active_allocated"),
        "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
        "blocks": blocks,
    } | changes  # fmt: skip


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size - 1, "state": state, "frames": [], **more}


def entry(action: str, address: int, size: int, time: int, **more: Any) -> dict[str, Any]:
    place = "device_free" if action == "oom" else "addr"
    return {
        "action": action, place: address, "size": size, "stream": 7, "time_us": time, "frames": [],
        "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0),
    } | more  # fmt: skip


def all_fields() -> dict[str, Any]:
    """Return a snapshot with each field that PyTorch documents or writes, of two devices and pinned memory."""
    call = [frame("train.py", 12, "main")]
    generated = [frame("fx_generated_1.py", 4, "forward", fx_node_op="call_module", fx_node_name="linear",
                       fx_node_target="linear", fx_original_trace='  File "net.py", line 3\n')]  # fmt: skip
    plain = [frame("fx_generated_1.py", 4, "forward")]  # the same place, without what torch.fx knows of it
    first = [
        block(1 << 40, 512, frames=generated),
        block((1 << 40) + 512, 512, frames=call, forward_frames=GRAD),
        block((1 << 40) + 1024, 2 * MIB - 1024, "inactive"),
    ]
    second = [block(1 << 41, 2 * MIB, frames=[], forward_frames=GRAD[:1])]
    history = [
        entry("segment_map", 1 << 40, 2 * MIB, 10, frames=call, pool_id=(0, 3)),
        entry("alloc", 1 << 40, 511, 20, frames=generated, pool_id=(0, 3), user_metadata='{"phase":"fwd"}'),
        entry("alloc", (1 << 40) + 512, 511, 30, frames=call, pool_id=(0, 3), forward_frames=GRAD),
        entry("alloc", (1 << 40) + 1024, 511, 31, frames=plain, pool_id=(0, 3), compile_context="0/1"),
        entry("free_requested", (1 << 40) + 1024, 511, 32, frames=call, internal_metadata="mallocWithAddress"),
        entry("free_completed", (1 << 40) + 1024, 511, 32, frames=call, internal_metadata="mallocWithAddress"),
        entry("annotate", 1 << 40, 511, 33, user_metadata="kept"),
        entry("oom", 3 * MIB, 1 << 36, 34, frames=call),
        entry("snapshot", 0, 1024, 40),
    ]
    other = [
        entry("segment_alloc", 1 << 41, 2 * MIB, 12),
        entry("alloc", 1 << 41, 2 * MIB - 1, 13, forward_frames=GRAD[:1]),
    ]
    return {
        "segments": [
            segment(1 << 40, 0, first, is_expandable=True, segment_pool_id=(0, 3), frames=call, stream=7),
            segment(1 << 41, 1, second, segment_type="large"),
        ],
        "device_traces": [history, other],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "max_split_size": -1,
            "garbage_collection_threshold": 0.5, "expandable_segments": True, "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": True, "pinned_use_cuda_host_register": False, "a_later_setting": "x",
            "roundup_power2_divisions": {"1": 0, "2": 4},
        },
        "external_annotations": [
            {"stage": "START", "name": "ProfilerStep#1", "device": 0, "time_us": 5},
            {"stage": "START", "name": "forward", "device": 1, "time_us": 6, "module": "net"},
            {"stage": "END", "name": "forward", "device": 1, "time_us": 25, "module": "net"},
            {"stage": "END", "name": "ProfilerStep#1", "device": 0, "time_us": 50},
        ],
        "host_segments": [segment(1 << 42, -1, [block(1 << 42, 4096)])],
        "host_traces": [entry("segment_alloc", 1 << 42, 4096, 35), entry("alloc", 1 << 42, 4095, 36)],
    }  # fmt: skip


def written(snapshots: Any, path: Any) -> dict[str, Any]:
    torch_writer.write(snapshots, path)
    with path.open("rb") as file:
        found: dict[str, Any] = pickle.load(file)
    del found["shared"]
    return found


def read_by_stream(value: Any) -> Any:
    return torch_pickle.parse(pickle.dumps(value, 4))


def read_by_values(value: Any) -> Any:
    return torch_pickle.snapshots(copy.deepcopy(value))


@pytest.mark.parametrize("read", [read_by_stream, read_by_values])
def test_pickle_keeps_all_fields(read, tmp_path):
    assert written(read(all_fields()), tmp_path / "x.pickle") == all_fields()


def test_forebay_format_keeps_all_fields(tmp_path):
    kept = []
    for number, each in enumerate(read_by_stream(all_fields())):
        native.write(each, tmp_path / f"{number}.forebay")
        kept += snapshot.load(tmp_path / f"{number}.forebay")
    assert written(kept, tmp_path / "x.pickle") == all_fields()


@pytest.mark.parametrize("read", [read_by_stream, read_by_values])
def test_one_device_keeps_the_annotations_of_all(read, tmp_path):
    found = written(read(all_fields())[1:2], tmp_path / "x.pickle")
    assert found["device_traces"][1] == all_fields()["device_traces"][1]
    assert found["external_annotations"] == all_fields()["external_annotations"]


def test_wrong_annotations_and_settings_are_left_out():
    value = all_fields()
    value["external_annotations"] = [3, {"time_us": []}, {1: 2}, {"name": "ok"}, {"name": None}]
    value["allocator_settings"] = {"x": [], 3: 4, "y": {"z": {}}, "max_split_size": "no", "ok": 1}
    first, *_ = read_by_values(value)
    assert first.notes["external_annotations"] == [{"name": "ok"}]
    assert first.notes["allocator_settings"] == {"ok": 1}
