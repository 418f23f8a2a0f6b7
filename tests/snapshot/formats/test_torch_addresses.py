"""Snapshots of Intel's GPUs, whose addresses are beyond 2^62: read relative to a base, written as recorded."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from forebay.records.model import State
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle, torch_writer
from forebay.snapshot.formats.native import BadSnapshot


def intel_snapshot():
    """Return a snapshot in the schema of torch.xpu.memory._snapshot: no pools, times, settings; large addresses."""
    start, frame = 0xFF00_0000_0020_0000, {"filename": "model.py", "line": 3, "name": "forward"}
    augmented = frame | {"fx_node_op": "call_function", "fx_node_name": "linear", "fx_original_trace": "File model.py"}
    blocks = [
        {"address": start, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": [augmented]},
        {"address": start + 512, "size": 512, "requested_size": 12, "state": "active_awaiting_free", "frames": []},
        {"address": start + 1024, "size": (2 << 20) - 1024, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    sizes = {"total_size": 2 << 20, "allocated_size": 512, "active_size": 1024}
    segment = {"address": start, "stream": 5, "segment_type": "small", "blocks": blocks} | sizes
    entry = {"stream": 5, "frames": [augmented]}
    trace = [
        entry | {"action": "segment_alloc", "addr": start, "size": 2 << 20},
        entry | {"action": "alloc", "addr": start, "size": 500},
        entry | {"action": "alloc", "addr": start + 512, "size": 12},
        entry | {"action": "free_requested", "addr": start + 512, "size": 12},
        entry | {"action": "oom", "size": 1 << 40, "device_free": 7},
    ]
    return {"segments": [segment], "device_traces": [trace]}


def test_snapshot_of_intel_gpu_is_read_and_written(tmp_path):
    value = intel_snapshot()
    (found,) = torch_pickle.parse(pickle.dumps(value))
    assert found.notes["address_base"] == "0xff00000000000000"
    assert found.segments["address"].tolist() == [2 << 20]
    assert found.blocks["state"].tolist() == [State.LIVE, State.PENDING_FREE, State.FREE]
    assert found.trace["address"].tolist() == [2 << 20, 2 << 20, (2 << 20) + 512, (2 << 20) + 512, 7]
    assert [frame.name for frame in found.stack(int(found.trace["stack"][1]))] == ["forward"]
    assert int(reconstruct(found).allocated.max()) == 512
    torch_writer.write([found], tmp_path / "again.pickle")
    again = pickle.loads((tmp_path / "again.pickle").read_bytes())
    addresses = [entry.get("addr", entry.get("device_free")) for entry in again["device_traces"][0]]
    assert addresses == [each.get("addr", each.get("device_free")) for each in value["device_traces"][0]]
    assert [block["address"] for block in again["segments"][0]["blocks"]] == [
        block["address"] for block in value["segments"][0]["blocks"]
    ]
    (reread,) = torch_pickle.parse((tmp_path / "again.pickle").read_bytes())
    assert reread.trace["address"].tolist() == found.trace["address"].tolist()


@pytest.mark.parametrize("address", [1, 1 << 40])
def test_addresses_that_are_too_far_apart_are_refused(address):
    value = intel_snapshot()
    value["device_traces"][0][1]["addr"] = address
    with pytest.raises(BadSnapshot, match="an address in"):
        torch_pickle.parse(pickle.dumps(value))


@pytest.mark.parametrize("base", ["0xffffffffffffffff", "0xff", 7, "junk", None])
def test_invalid_base_is_ignored(tmp_path, base):
    (found,) = torch_pickle.parse(pickle.dumps(intel_snapshot()))
    torch_writer.write([replace(found, notes={"address_base": base})], tmp_path / "a.pickle")
    assert pickle.loads((tmp_path / "a.pickle").read_bytes())["segments"][0]["address"] == 2 << 20
