"""Hostile snapshot files: refused or read in memory and time in proportion to their size."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forebay import simulate, snapshot
from forebay.errors import Unsupported
from forebay.records.model import ENTRY
from forebay.snapshot.formats import native, torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot
from forebay.snapshot.replay import engine
from forebay.snapshot.report import html

MIB = 1 << 20
ADDRESS = 0x7F0000000000


def text(word):
    return b"\x8c" + bytes([len(word)]) + word.encode()


def entry(**values):
    return {"action": "alloc", "addr": ADDRESS, "size": 512, "stream": 0, "frames": []} | values


def history(entries, **settings):
    (found,) = torch_pickle.snapshots(
        {"segments": [], "device_traces": [entries], "allocator_settings": {"expandable_segments": True} | settings}
    )
    return found


@pytest.mark.parametrize("opcode", [b"]", b"N", b"}", b"K\xff", b"(t", b"G12345678", b"]\x94"])
def test_pickle_of_many_values_needs_no_more_memory_than_allowed(opcode):
    content = b"\x80\x04](" + opcode * (8 * MIB // len(opcode)) + b"e."
    tracemalloc.start()
    try:
        with pytest.raises(BadSnapshot):
            torch_pickle.parse(content)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(content) + 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", ["key", "pool_id", "user_metadata"])
def test_nested_tuple_is_refused(key):
    nested = b")" + b"\x85" * 200_000
    content = b"\x80\x04}" + nested + b"Ns."
    if key != "key":
        row = b"}(" + text("action") + text("alloc") + text("size") + b"K\x01" + text(key) + nested + b"u"
        content = b"\x80\x04}(" + text("segments") + b"]" + text("device_traces") + b"](](" + row + b"eeu."
    with pytest.raises(BadSnapshot, match="nested too deeply"):
        torch_pickle.parse(content)


@pytest.mark.parametrize("key", ["pool_id", "user_metadata", "compile_context", "action"])
def test_tuple_whose_hash_takes_exponential_time_is_not_hashed(key):
    value = ()
    for _ in range(60):
        value = (value, value)
    with pytest.raises(BadSnapshot):
        history([entry(**{key: value})])


def test_keys_with_equal_hashes_are_refused():
    numbers = [b"G" + struct.pack(">d", 2.0 ** (61 * power)) for power in range(-16, 17)]
    keys = (b"".join(three) + b"\x87N" for three in itertools.product(numbers, repeat=3))
    with pytest.raises(BadSnapshot, match="a key is neither a string nor a number"):
        torch_pickle.parse(b"\x80\x04}(" + b"".join(keys) + b"u.")


def test_keys_may_be_small_numbers():
    assert history([entry(other={7: 1})]).trace["nbytes"].tolist() == [512]


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 59])
def test_huge_mapping_is_one_range(nbytes):
    found = history([entry(action="segment_map", addr=0, size=nbytes), entry(addr=0)])
    assert engine.History(found).device_allocs == 1
    assert engine.check(found).total == 1


def maps(count):
    return [entry(action="segment_map", addr=ADDRESS + at * 4 * MIB, size=2 * MIB, stream=at) for at in range(count)]


def nested_maps(count):
    return [entry(action="segment_map", addr=ADDRESS - at * 4 * MIB, size=(at + 1) * 4 * MIB) for at in range(count)]


def nested_segments(count):
    blocks = [
        entry(action=action, addr=ADDRESS + at * 2 * MIB, size=2 * MIB)
        for at in range(count)
        for action in ("alloc", "free_requested", "free_completed")
    ]
    return blocks + [entry(action="segment_free", size=(at + 1) * 2 * MIB) for at in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("entries", [maps, nested_maps, nested_segments])
def test_time_of_replay_is_linear(entries):
    """Eight times the entries took 64 times as long; the limit leaves room for a busy machine."""
    seconds = []
    for count in (2_000, 16_000):
        found = history(entries(count))
        began = time.process_time()
        engine.History(found).run(memory=1 << 40)
        engine.check(found)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 24 * seconds[0] + 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a period")
def test_replay_of_many_streams_needs_no_more_memory_than_allowed():
    """The tables of each queue took 9 KiB."""
    rows = maps(16_000)
    size, found = len(pickle.dumps(rows)), history(rows)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory
    before = peak_memory()
    assert engine.check(found).total == 0
    assert peak_memory() - before < 20 * size + 64 * MIB


def peak_memory():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_too_many_private_pools_are_not_simulated():
    found = history([entry(pool_id=(number, 1)) for number in range(5_000)])
    assert len(found.notes["pools"]) == 5_000
    with pytest.raises(Unsupported, match="5,000 private pools"):
        engine.History(found)


def rewritten(path, change, level=1):
    """Rewrite the manifest of a file of forebay's format."""
    members = {}
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["manifest.json"] = change(json.loads(members["manifest.json"]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.fixture
def path(tmp_path):
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.free(gpu.allocate(1000))
    native.write(torch_pickle.snapshots(gpu.snapshot())[0], tmp_path / "a.forebay")
    return tmp_path / "a.forebay"


@pytest.mark.parametrize("item", ["[],", "{},", '"ab",', '{"a":0},', "1000,", "1e9,"])
def test_manifest_bomb_is_refused(path, item):
    def change(manifest):
        whole = json.dumps(manifest | {"notes": {}})
        return whole.replace('"notes": {}', '"notes": {"x": [' + item * 2_000_000 + "0]}").encode()

    rewritten(path, change, 9)
    tracemalloc.start()
    try:
        with pytest.raises(BadSnapshot, match="more memory"):
            snapshot.load(path)
        assert tracemalloc.get_traced_memory()[1] < 20 * path.stat().st_size + 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_regular_history_is_written_so_that_it_can_be_read(path):
    (found,) = snapshot.load(path)
    trace = np.zeros(1_500_000, ENTRY)
    trace["action"] = 1
    native.write(replace(found, trace=trace), path)
    tracemalloc.start()
    try:
        assert len(snapshot.load(path)[0].trace) == 1_500_000
        assert tracemalloc.get_traced_memory()[1] < 20 * path.stat().st_size + 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("device", ["\x1b]0;title\x07", "\ud800", "[/red]", "\u202e"])
@pytest.mark.parametrize("option", [(), ("--check",), ("--json",), ("--memory", "1KiB")])
def test_names_in_a_file_do_not_control_the_terminal(path, device, option):
    settings = {"PYTORCH_CUDA_ALLOC_CONF": device}
    rewritten(
        path,
        lambda manifest: json.dumps(
            manifest | {"device": device, "notes": {"allocator_settings": settings, "program": [device]}}
        ).encode(),
    )
    done = subprocess.run([sys.executable, "-m", "forebay", "replay", path, *option], capture_output=True, check=False)
    assert done.stderr.count(b"\n") <= 1
    for output in (done.stdout.decode(), done.stderr.decode()):
        assert not {*device} & {*"\x1b\x07\u202e"} & {*output}


def test_long_names_are_shortened_in_reports(path):
    (found,) = torch_pickle.snapshots(
        {"segments": [], "device_traces": [[entry(frames=[{"filename": "a" * 10 * MIB, "name": "f", "line": 1}])]]}
    )
    page = io.StringIO()
    html.write(found, page)
    assert len(page.getvalue()) < MIB


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "."])
@pytest.mark.parametrize("command", [["replay"], ["-W", "ignore", "-m", "forebay.cuda._memory_viz", "stats"]])
def test_commands_refuse_special_files_in_one_line(tmp_path, name, command):
    os.mkfifo(tmp_path / "pipe")
    start = command if command[0] == "-W" else ["-m", "forebay", *command]
    done = subprocess.run(
        [sys.executable, *start, tmp_path / name], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("forebay: error: ")
    assert done.stderr.count("\n") == 1


def test_incomplete_snapshot_is_one_line_in_memory_viz(tmp_path):
    (tmp_path / "file").write_bytes(pickle.dumps({"segments": [{}], "device_traces": [[{"action": "\x1b"}]]}))
    for action in ("stats", "trace", "memory", "trace_plot"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "forebay.cuda._memory_viz", action, tmp_path / "file"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
