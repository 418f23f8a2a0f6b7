"""The memory outside the allocator: the table is that of the data, and each card has a range."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from forebay import profiles
from forebay._base import outside_memory as module
from forebay._base.outside_memory import NOTHING, OutsideMemory, context_bytes, outside_memory

ROOT = Path(__file__).parents[2]
GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("outside_memory")


def test_table_is_that_of_the_data(tool: ModuleType):
    assert tool.TABLE.read_text(encoding="utf-8") == tool.table()


def test_groups_leave_out_doubtful_messages_and_count_each_log_once(tool: ModuleType):
    rows = [
        {"card": "T4", "group": "a", "outside_gib": "0.1", "note": ""},
        {"card": "T4", "group": "a", "outside_gib": "0.3", "note": "capacity-summed"},
        {"card": "T4", "group": "b", "outside_gib": "9", "note": "doubtful:test-fixture"},
        {"card": "", "group": "c", "outside_gib": "9", "note": ""},
        {"card": "T4", "group": "d", "outside_gib": "0.5", "note": ""},
    ]
    assert tool.groups(rows) == {"T4": [pytest.approx(0.2), 0.5]}
    assert tool.bounds([each / 20 for each in range(21)]) == (51, 512, 768)


def test_measured_card_has_its_own_range(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    names = {"context": 300, "first kernel": 310, "cuBLAS, fp32": 400, "cuFFT": 450, "NCCL": 900}
    steps = [{"name": name, "outside": mib * MIB} for name, mib in names.items()]
    document = {"card": {"name": "Tesla T4"}, "versions": {"torch": "2.11.0", "cuda": "13.0"}, "outside": steps}
    assert tool.measured(document) == (310, 400, 450)
    assert tool.measured({"outside": [{"name": "nothing"}]}) is None
    (tmp_path / "t4-torch-2.11.0.json").write_text(json.dumps(document))
    monkeypatch.setattr(tool, "MEASURED", tmp_path)
    monkeypatch.setattr(module, "_table", lambda: tomllib.loads(tool.table()))
    expected = OutsideMemory(
        310 * MIB, 400 * MIB, 450 * MIB, "measured on this card with PyTorch 2.11.0 with CUDA 13.0"
    )
    assert outside_memory("t4") == expected
    assert outside_memory("h100").source.startswith("out-of-memory messages")


@pytest.mark.parametrize("name", profiles.names("cuda"))
def test_each_card_has_a_range(name: str):
    found = outside_memory(name)
    assert 0 < found.low <= found.value <= found.high < 2 * GIB
    assert found.source
    assert context_bytes(name) == found.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mi250x", "on any card,"),
        ("gb10", "on any card,"),
        ("rtx_5090", "RTX 5090"),
        ("t4", "on T4,"),
        ("rtx_4090", "RTX 3090"),
        ("h100", "80 GB"),
        ("l40s", "L40S"),
        ("v100", "V100"),
    ],
)
def test_card_is_of_its_class(name: str, words: str):
    assert words in outside_memory(name).source


def test_ranges_are_those_of_the_records():
    found = outside_memory("t4")
    assert (found.low // MIB, found.value // MIB, found.high // MIB) == (106, 140, 158)
    assert found.text == "140 MiB (106 to 158)"
    assert OutsideMemory(GIB, GIB, 3 * GIB // 2).text == "1.00 GiB (1.00 to 1.50)"
    assert OutsideMemory(GIB, GIB, GIB).text == "1.00 GiB"


def test_reserve_of_the_user_replaces_the_range():
    assert outside_memory("t4", reserve=GIB)[:3] == (GIB, GIB, GIB)
    assert outside_memory("t4", reserve=0)[:3] == (0, 0, 0)
    for wrong in (GIB, -1):
        with pytest.raises(ValueError, match="cannot be reserved: nothing is left"):
            outside_memory("t4", GIB, wrong)


def test_nothing_is_outside_of_small_devices_and_other_kinds():
    assert outside_memory("h100", 2 * GIB - 1) == outside_memory("apple_m4") == NOTHING
    assert outside_memory("h100", 2 * GIB) == outside_memory("h100")


def test_page_has_the_ranges_of_the_table():
    table = tomllib.loads((ROOT / "src/forebay/_base/outside_memory.toml").read_text(encoding="utf-8"))
    page = (ROOT / "docs/how-to/will-my-model-fit.md").read_text(encoding="utf-8")
    for row in table["class"]:
        name = "any other card" if row["name"] == "any card" else row["name"]
        assert f"| {name} | {row['value']} | {row['low']} to {row['high']} | {row['groups']} |" in page
