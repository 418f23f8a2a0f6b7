"""Writing PyTorch's pickles: nothing is lost that the schema can express, and PyTorch's own tools open them."""

from __future__ import annotations

import pickle
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.equal_snapshots import assert_equal
from support.on_oracle import ORACLE, why_no_oracle
from support.snapshot_programs import program
from support.snapshot_scenes import random_history, steps
from support.synthetic_history import synthetic

from forebay import simulate, snapshot
from forebay.records.model import ENTRY, STACK, Action
from forebay.snapshot.formats import native, torch_pickle, torch_writer
from forebay.snapshot.formats.native import BadSnapshot


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1 << 30), st.sampled_from(["", "expandable_segments:True"]), st.integers(0, 2), st.integers(1, 3),
    st.sampled_from([3 << 30, 300 << 20]),
)  # fmt: skip
def test_pickle_of_pytorch_survives_both_formats(tmp_path_factory, seed, text, pools, streams, total):
    """From a pickle to columns, to our file, to columns, and back to a pickle."""
    folder = tmp_path_factory.mktemp("formats")
    (first,) = torch_pickle.snapshots(program(seed, text, steps=200, pools=pools, streams=streams, total=total))
    native.write(first, folder / "own.forebay")
    torch_writer.write(snapshot.load(folder / "own.forebay"), folder / "torch.pickle")
    assert_equal(snapshot.load(folder / "torch.pickle")[0], first)


@settings(max_examples=15, deadline=None)
@given(steps, st.booleans())
def test_columns_survive_the_pickle(tmp_path_factory, moves, growing):
    path = tmp_path_factory.mktemp("formats") / "torch.pickle"
    history = random_history(moves, growing=growing)
    torch_writer.write([history], path)
    (found,) = snapshot.load(path)
    expected = replace(history, device="cuda:0", notes=found.notes)
    expected.trace["time_ns"] -= expected.trace["time_ns"] % 1000
    assert_equal(found, expected)


def test_schema_is_that_of_pytorch(tmp_path):
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.allocate(3 << 20, 7)
    with gpu.use_pool(gpu.new_pool()), pytest.raises(MemoryError):
        gpu.allocate(4 << 30)
    value = gpu.snapshot()
    torch_writer.write(torch_pickle.snapshots(value), tmp_path / "file")
    found = pickle.loads((tmp_path / "file").read_bytes())
    assert set(found) - {"shared"} == set(value)
    assert found["segments"][0].keys() == value["segments"][0].keys()
    for name, number in value["segments"][0].items():
        if name not in ("frames", "blocks"):
            assert found["segments"][0][name] == number
    for written, made in zip(found["device_traces"][0], value["device_traces"][0], strict=True):
        assert written == made
    assert found["segments"][0]["blocks"] == value["segments"][0]["blocks"]


def test_devices_and_pinned_memory_keep_their_places(tmp_path):
    first, second = (replace(synthetic(1_000, seed), device=f"cuda:{2 * seed}") for seed in (0, 1))
    pinned = replace(synthetic(1_000, 2), device="pinned", notes={})
    torch_writer.write([first, second, pinned], tmp_path / "file")
    found = snapshot.load(tmp_path / "file")
    assert [each.device for each in found] == ["cuda:0", "cuda:2", "pinned"]
    assert [each.trace["address"].tolist() for each in found] == [
        each.trace["address"].tolist() for each in (first, second, pinned)
    ]


def test_large_numbers_are_written(tmp_path):
    history = synthetic(1_000)
    trace = np.zeros(2, ENTRY)
    trace["action"], trace["queue"] = Action.SNAPSHOT, [1 << 63, (1 << 64) - 1]
    torch_writer.write([replace(history, trace=trace)], tmp_path / "file")
    assert snapshot.load(tmp_path / "file")[0].trace["queue"].tolist() == trace["queue"].tolist()


def test_two_snapshots_of_a_device_are_refused(tmp_path):
    history = synthetic(1_000)
    with pytest.raises(BadSnapshot, match="two snapshots are of the device 'cuda:0'"):
        torch_writer.write([history, history], tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.oracle
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle() or "there is one")
def test_tools_of_pytorch_open_the_file(tmp_path):
    path = tmp_path / "torch.pickle"
    torch_writer.write([synthetic(5_000)], path)
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle, sys\n"
        "from torch.cuda import _memory_viz as viz\n"
        "data = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert len(viz.trace_plot(data)) > 100_000 and len(viz.segment_plot(data)) > 10_000\n"
        "assert viz.segsum(data) and viz.trace(data) and len(viz.segments(data, lambda text: text)) > 100\n"
    )
    subprocess.run(["bash", ORACLE, script, path], check=True, timeout=100, capture_output=True)


def deep(stacks):
    """A history whose stacks are one chain, each the caller of the next: a small file with many frames."""
    trace = np.zeros(stacks, ENTRY)
    trace["action"], trace["nbytes"], trace["stack"] = Action.ALLOC, 512, np.arange(1, stacks + 1)
    chain = np.zeros(stacks + 1, STACK)
    chain["parent"][1:] = np.arange(stacks)
    given = synthetic(1000)
    return replace(given, trace=trace, stacks=chain, segments=given.segments[:0], blocks=given.blocks[:0])


def test_shared_callers_are_written_in_a_second(tmp_path):
    given, began = deep(1500), time.process_time()
    torch_writer.write([given], tmp_path / "file")
    assert time.process_time() - began < 3.0
    (found,) = snapshot.load(tmp_path / "file")
    assert [*found.stack(found.trace["stack"][-1])] == [*given.stack(1500)]


def test_devices_share_equal_stacks(tmp_path):
    torch_writer.write([deep(300)], tmp_path / "one")
    torch_writer.write([deep(300), replace(deep(300), device="cuda:1")], tmp_path / "two")
    frames = 5 * 300 * 301 // 2  # bytes of the references to them
    assert (tmp_path / "two").stat().st_size - (tmp_path / "one").stat().st_size < frames / 2


def test_more_frames_than_a_pickle_can_list_are_refused(tmp_path):
    with pytest.raises(BadSnapshot, match="more than 100,000,000 frames"):
        torch_writer.write([deep(20_000)], tmp_path / "file")
    assert not (tmp_path / "file").exists()
