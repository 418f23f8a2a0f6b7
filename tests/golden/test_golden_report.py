"""The golden trace runner reports the first difference, and distinguishes invalid files from differences."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from support.golden import command
from support.golden.files import Trace, as_forebay_text, name_of_address, read
from support.model.pinned import ModelPinned

from forebay.errors import OutOfMemory

PINNED = sorted((Path(__file__).parents[1] / "data/golden").glob("pinned_*"))
PROBLEM = "torch.OutOfMemoryError"
STATS = {"allocation.all.current": 0, "reserved_bytes.all.current": 0}
BY_POOL = "reserved_bytes_by_private_pools.0_%d.all.current"


class Bump:
    """A bump allocator as the device: each allocation is a segment of 2 MiB after the previous one."""

    def __init__(self, total_memory, settings, other_used, *, index):
        self.base = 0x100000000000 + index * 0x040000000000
        self.total, self.other, self.live, self.next = total_memory, other_used, [], self.base
        self.pools = {}

    def allocate(self, nbytes, stream=0):
        if nbytes > 2 << 20:
            raise OutOfMemory("CUDA out of memory. forebay has 2 MiB.\n  An explanation.")
        self.live.append((self.next, stream))
        self.next += 2 << 20
        return self.live[-1][0]

    def free(self, address):
        self.live = [each for each in self.live if each[0] != address]

    def memory_info(self):
        return self.total - self.other - (len(self.live) << 21), self.total

    def new_pool(self):
        self.pools = {BY_POOL % 17: 0}
        return 0, 17

    def stats(self):
        return dict(zip(STATS, (len(self.live), len(self.live) << 21), strict=True)) | self.pools

    def snapshot(self):
        block = {"size": 2 << 20, "requested_size": 5, "state": "active_allocated", "frames": []}
        return {
            "segments": [
                {"address": at, "stream": stream, "segment_pool_id": (0, 0), "blocks": [{"address": at} | block]}
                for at, stream in self.live
            ],
            "device_traces": [[{"action": "alloc", "addr": at, "size": 5, "stream": s} for at, s in self.live]],
        }


def trace():
    """Return the trace of a PyTorch with Bump's policy: two allocations, an OutOfMemory, a pool, the history."""

    def segment(offset, stream):
        blocks = [{"offset": 0, "size": 2 << 20, "requested_size": 5, "state": "active_allocated"}]
        return {"address": f"d0+{offset:#x}", "stream": stream, "segment_pool_id": [0, 0], "blocks": blocks}

    one, two = [segment(0, 3)], [segment(0, 3), segment(2 << 20, 0)]
    allocation = {"action": "alloc", "addr": "d0+0x0", "size": 5, "stream": 3}
    one_block = {"allocation.all.current": 1, "reserved_bytes.all.current": 2 << 20}
    two_blocks = {"allocation.all.current": 2, "reserved_bytes.all.current": 4 << 20}
    oom = {"error": PROBLEM, "bases": ["RuntimeError"], "message": "CUDA out of memory. PyTorch has 2 MiB."}
    lines = [
        ({"op": "alloc", "id": 1, "size": 5, "stream": 3}, {"addr": "d0+0x0"}, 1, {"stats": STATS | one_block}, one),
        ({"op": "alloc", "id": 2, "size": 5}, {"addr": "d0+0x200000"}, 2, {"stats_delta": two_blocks}, two),
        ({"op": "alloc", "id": 3, "size": 9 << 20}, oom, 2, {"stats_delta": {}}, two),
        ({"op": "free", "id": 3}, {"skipped": "not live"}, 2, {"stats_delta": {}}, two),
        ({"op": "free", "id": 2}, {}, 1, {"stats_delta": one_block}, one),
        ({"op": "pool_new", "pool": "p"}, {"id": [0, 1]}, 1, {"stats_delta": {BY_POOL % 1: 0}}, one),
        ({"op": "trace"}, {"trace": [allocation]}, 1, {"stats_delta": {}}, one),
    ]
    records = [
        {"i": i, "op": op, "result": result, "device_used": [blocks << 21], "segments": segments} | stats
        for i, (op, result, blocks, stats, segments) in enumerate(lines)
    ]
    records.insert(4, {"i": 4, "op": {"op": "snapshot"}})
    return Trace({"total_mb": 64, "context_mb": 8}, json.loads(json.dumps(records)))


def report_on(recording):
    return command.run_trace(recording, "planted", Bump, Bump)


def test_equal_trace_is_equal_in_all_aspects():
    report = report_on(trace())
    assert report.equal, str(report)
    assert report.operations == 8
    assert report.counts == {
        "addresses": [2, 2],
        "other results": [5, 5],
        "statistics": [7, 7],
        "segments": [7, 7],
        "device memory": [7, 7],
    }
    assert "2 of 2 addresses, 5 of 5 other results, 7 of 7 statistics, 7 of 7 segments" in str(report)


def set_at(number, value, *keys):
    def plant(records):
        at = records[number]
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value

    return plant


@pytest.mark.parametrize(
    ("aspect", "plant", "equal", "shown"),
    [
        ("addresses", set_at(1, "d0+0x400000", "result", "addr"), 1, "d0+0x400000"),
        ("other results", set_at(2, "PyTorch has 3 MiB.", "result", "message"), 4, "forebay has 3 MiB."),
        ("other results", set_at(2, "builtins.ValueError", "result", "error"), 4, "ValueError"),
        ("other results", set_at(3, {}, "result"), 4, "not live"),
        ("other results", set_at(6, [0, 2], "result", "id"), 4, '"is": 2'),
        ("other results", set_at(7, "free", "result", "trace", 0, "action"), 4, '"free"'),
        ("statistics", set_at(7, 9, "stats_delta", "allocation.all.current"), 6, '{"allocation.all.current": 9}'),
        ("statistics", set_at(7, ["stats:allocation.all.current"], "stats_gone"), 6, "allocation.all.current"),
        ("segments", set_at(2, 6, "segments", 1, "blocks", 0, "requested_size"), 6, '"requested_size": 6'),
        ("segments", set_at(7, [], "segments"), 6, '"count": 1'),
        ("device memory", set_at(0, [3 << 20], "device_used"), 6, "56623104"),
    ],
)  # fmt: skip
def test_planted_difference_is_found(aspect, plant, equal, shown):
    recording = trace()
    plant(recording.records)
    report = report_on(recording)
    assert not report.equal
    assert report.first.aspect == aspect
    assert report.counts[aspect][0] == equal
    assert all(equal == total for name, (equal, total) in report.counts.items() if name != aspect)
    assert f"first difference: {aspect} of operation {report.first.number}: " in str(report)
    assert shown in str(report)


def test_unrecorded_error_is_a_difference():
    recording = trace()
    recording.records[4]["op"] = {"op": "free"}
    report = report_on(recording)
    assert (report.first.number, report.first.aspect) == (4, "other results")
    assert "missing 1 required positional argument" in str(report)


def test_unknown_operation_makes_the_trace_invalid():
    recording = trace()
    recording.records[4]["op"] = {"op": "dance"}
    with pytest.raises(command.NotGolden, match="planted: not a golden trace: unknown operation 'dance'"):
        report_on(recording)


def test_only_the_first_difference_is_shown_and_all_are_counted():
    recording = trace()
    for number in (0, 1):
        recording.records[number]["result"]["addr"] = "null"
    report = report_on(recording)
    assert report.first.number == 0
    assert report.counts["addresses"] == [0, 2]


@pytest.mark.parametrize(
    ("pytorch", "expected"),
    [
        ("2 MiB is allocated by PyTorch", "2 MiB is allocated by forebay"),
        ("Including non-PyTorch memory", "Including non-forebay memory"),
        ("try setting PYTORCH_CUDA_ALLOC_CONF=x", "try setting FOREBAY_ALLOC_CONF=x"),
        ("| PyTorch CUDA memory summary, device ID 0    |", "| forebay CUDA memory summary, device ID 0    |"),
    ],
)
def test_text_of_pytorch_is_translated(pytorch, expected):
    assert as_forebay_text(pytorch) == expected


@pytest.mark.parametrize(
    ("address", "name"),
    [(0, "null"), (0x100000200000, "d0+0x200000"), (0x140000000000, "d1+0x0"), (0x200000000400, "v+0x400"), (5, "0x5")],
)
def test_addresses_have_names(address, name):
    assert name_of_address(address) == name


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("absent.jsonl", None, "No such file"),
        ("empty.jsonl", b"", "not a golden trace"),
        ("words.jsonl", b"once upon a time\n", "not a golden trace"),
        ("other.jsonl", b'{"a": 1}\n', "not a golden trace"),
        ("broken.jsonl.xz", b"\xfd7zXZ\x00 and then", "not a golden trace"),
        ("cut.jsonl.xz", lzma.compress(b'{"header": {"config": {}}}\n' * 99)[:-9], "not a golden trace"),
        ("list.jsonl", b'{"header": {"config": {}}}\n[1]\n', "not a golden trace"),
        ("header.jsonl", b'{"header": {"config": {}}}\n', "it has no operations"),
    ],
)
def test_invalid_file_is_reported_in_one_line(tmp_path, capsys, monkeypatch, name, data, message):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(command.NotGolden, match=message):
        read(path)
    monkeypatch.setattr(command, "simulated", lambda **_: (Bump, Bump))
    assert command.main([str(path)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert name in errors


def test_exit_status_distinguishes_equal_and_different(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "simulated", lambda **_: (Bump, Bump))
    header = '{"header": {"config": {"total_mb": 64}}}\n'
    line = '{"i": 0, "op": {"op": "stats"}, "result": %s, "device_used": [0], "stats": {}}\n'
    equal, different = tmp_path / "equal.jsonl", tmp_path / "different.jsonl"
    equal.write_text(header + '{"i": 0, "op": {"op": "snapshot"}}\n')
    different.write_text(header + line % '{"addr": "null"}')
    assert command.main([str(equal)]) == 0
    assert "first difference" not in capsys.readouterr().out
    assert command.main([str(different), str(equal)]) == 1
    shown = capsys.readouterr().out
    assert "different.jsonl: 1 operations, equal: 0 of 1 addresses" in shown
    assert "equal.jsonl: 1 operations" in shown
    assert command.main([str(different), str(tmp_path / "absent")]) == 2


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name.removesuffix(".jsonl.xz"))
def test_pinned_memory_model_reproduces_the_trace(path):
    report = command.run(path, lambda *_, **__: MagicMock(), ModelPinned)
    assert report.equal, str(report)
    assert report.counts["statistics"] == [report.operations, report.operations] != [0, 0]


def test_runner_runs_as_a_module(root):
    command_line = [sys.executable, "-m", "support.golden.command", "--help"]
    done = subprocess.run(command_line, cwd=root / "tests", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: ")
