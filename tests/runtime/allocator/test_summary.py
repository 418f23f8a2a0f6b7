"""The memory summary has PyTorch's lines, columns and units."""

from __future__ import annotations

import json
import lzma
from itertools import product

import pytest
from support.golden.files import as_forebay_text

from forebay.runtime.allocator.summary import memory_summary


def test_summary_equals_the_recorded_table_of_pytorch(root):
    """Statistics and table were recorded from PyTorch 2.15."""
    with lzma.open(root / "tests/data/torch-golden/small.jsonl.xz", "rt") as lines:
        records = [json.loads(line) for line in lines][1:]
    stats = {}
    for record in records:
        stats |= record.get("stats") or record["stats_delta"]
        if "summary" in record["result"]:
            assert memory_summary(stats) == as_forebay_text(record["result"]["summary"])
            break
    else:
        pytest.fail("the trace has no summary")


# What PyTorch's own function shows for allocated_bytes, and for allocation: (all, large pool).
SIZES = [
    ((786431, 5000), "786431 B  ", "  5000 B  "),
    ((786432, 5000), "   768 KiB", "     4 KiB"),
    ((805306367, 800), "786431 KiB", "     0 KiB"),
    ((805306368, 805306368), "   768 MiB", "   768 MiB"),
    ((1 << 60, 1 << 50), "  1024 PiB", "     1 PiB"),
]
COUNTS = [
    ((749999, 3), " 749999   ", "      3   "),
    ((750000, 3), "    750 K ", "      0 K "),
    ((750000000, 1999999), "    750 M ", "      1 M "),
    ((10**12, 10**9), "1000000 M ", "   1000 M "),
]


@pytest.mark.parametrize(("metric", "numbers", "whole", "part"), [
    *(("allocated_bytes", *each) for each in SIZES), *(("allocation", *each) for each in COUNTS),
])  # fmt: skip
def test_numbers_use_the_units_of_pytorch(metric, numbers, whole, part):
    stats = {f"{metric}.all.peak": numbers[0], f"{metric}.large_pool.peak": numbers[1]}
    lines = memory_summary(stats).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(("| Allocated", "| Allocations")) and whole in line)
    assert lines[at].split(" | ")[2] == whole
    assert lines[at + 1].split(" | ")[2] == part


def test_all_lines_have_the_same_width():
    for device, kind, abbreviated in product((0, 15), ("cuda", "mps", "mtia", "a-longer-name"), (False, True)):
        lines = memory_summary({}, device, kind=kind, abbreviated=abbreviated).splitlines()
        assert {len(line) for line in lines} == {77}
        assert len(lines) == (29 if abbreviated else 47)
        assert any(f"{kind.upper()} memory summary, device ID {device} " in line for line in lines)
        assert any(f" {kind.upper()} OOMs: 0 " in line for line in lines)
    assert not any("pool" in line for line in lines)
