"""Files that PyTorch 2.15 wrote (tests/data/make_snapshots.py): read in the stream, replayed, and written again."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path

import pytest
from support.equal_snapshots import assert_equal

from forebay import snapshot
from forebay.records.model import Action
from forebay.snapshot.formats import torch_pickle, torch_writer
from forebay.snapshot.formats.byte_source import ByteSource
from forebay.snapshot.formats.torch_decode import decode_stream
from forebay.snapshot.replay import engine

FOLDER = Path(__file__).parents[2] / "data" / "snapshots"
FILES = {path.name.removesuffix(".pickle.gz"): path for path in FOLDER.glob("*.pickle.gz")}


@pytest.fixture(params=sorted(FILES))
def path(request):
    return FILES[request.param]


def value_of(path):
    return pickle.loads(gzip.decompress(path.read_bytes()))


def test_all_programs_are_there():
    assert FILES.keys() == {
        "cpp_frames", "expandable_segments", "graph", "metadata", "out_of_memory", "private_pools",
        "two_devices_and_streams", "wrapped_history",
    }  # fmt: skip


def test_stream_equals_plain_values(path):
    decode_stream(ByteSource(io.BytesIO(path.read_bytes())))  # does not raise Odd
    for found, expected in zip(snapshot.load(path), torch_pickle.snapshots(value_of(path)), strict=True):
        assert_equal(found, expected)


def test_allocations_are_placed_as_recorded(path):
    for found in snapshot.load(path):
        result = engine.check(found)
        assert result.total > 5
        assert result.equal, result


def test_written_again_nothing_is_lost(path, tmp_path):
    torch_writer.write(snapshot.load(path), tmp_path / "again.pickle")
    found, expected = pickle.loads((tmp_path / "again.pickle").read_bytes()), value_of(path)
    while not expected["device_traces"][-1]:
        expected["device_traces"].pop()  # devices that were not used
    for ours, theirs in zip(found["segments"], expected["segments"], strict=True):
        compare(ours, theirs)
    for our_trace, their_trace in zip(found["device_traces"], expected["device_traces"], strict=True):
        for ours, theirs in zip(our_trace, their_trace, strict=True):
            compare(ours, theirs)


def compare(ours, theirs):
    for key, value in theirs.items():
        if key == "blocks":
            for our_block, their_block in zip(ours[key], value, strict=True):
                compare(our_block, their_block)
        elif key == "frames":
            assert [(frame["filename"], frame["line"], frame["name"]) for frame in ours[key]] == [
                (frame["filename"], frame["line"], frame["name"]) for frame in value
            ]
        elif key == "requested_size" and ours.get("state") == "inactive":
            continue  # PyTorch keeps the size of the last allocation
        elif key != "internal_metadata":
            assert ours[key] == value


def test_what_the_programs_did_is_found():
    (memory,) = snapshot.load(FILES["out_of_memory"])
    assert (memory.trace["action"] == Action.OOM).sum() == 1
    assert memory.notes["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    (expandable,) = snapshot.load(FILES["expandable_segments"])
    assert {Action.MAP, Action.UNMAP} <= set(expandable.trace["action"].tolist())
    assert expandable.segments["growing"].all()
    (pools,) = snapshot.load(FILES["private_pools"])
    assert pools.notes["pools"] == {"1": [0, 1]}
    (graph,) = snapshot.load(FILES["graph"])
    assert graph.notes["pools"] == {"1": [1, 0]}
    first, second = snapshot.load(FILES["two_devices_and_streams"])
    assert (first.device, second.device) == ("cuda:0", "cuda:1")
    assert len(set(first.trace["queue"].tolist())) == 2

    (cpp,) = snapshot.load(FILES["cpp_frames"])
    assert any(name.startswith("at::") or "::" in name for name in cpp.strings)
    (metadata,) = snapshot.load(FILES["metadata"])
    assert [label[1] for label in metadata.labels] == ["step 0", "step 1", "step 2"]
    (wrapped,) = snapshot.load(FILES["wrapped_history"])
    assert len(wrapped.trace) == 100
