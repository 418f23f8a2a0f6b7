"""Allocations of operator calls on real GPUs, and over the oracle, compared with emulated devices.

The records of GPUs are those that `dev.py gpu --keep` has put into tests/data/gpu-truth, see tools/gpu/workspaces.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="compares calls of PyTorch on emulated devices")

from support import stub_libraries  # noqa: E402 -- needs torch
from support.on_oracle import ORACLE  # noqa: E402 -- as above
from support.oracle_programs import on_oracle  # noqa: E402 -- as above

TOOLS = Path(__file__).parents[3] / "tools"
RECORDS = Path(__file__).parents[2] / "data" / "gpu-truth"
FILES = [pytest.param(path, id=path.stem) for path in sorted(RECORDS.glob("*.json"))] or [
    pytest.param(None, marks=pytest.mark.skip(reason="no GPU has been recorded yet"))
]
ORACLE_SECONDS = 110
MACHINE = {"name": "NVIDIA H100 80GB HBM3", "torch": "2.15.0"}
SOME = (
    "reduce operator=sum shape=1000000",
    "mm rows=1024 inner=1024 columns=1024 dtype=float32",
    "layer_norm direction=backward shape=8192x768",
    "sdpa backend=flash direction=backward causal=True",
    "sdpa backend=efficient direction=training causal=True",
    "cross_entropy direction=backward rows=256 classes=1000 smoothing=0.1",
    "list tensors=40 shape=512x256 operator=_foreach_norm",
    "group_norm direction=forward shape=2x320x64x64 groups=32 dtype=float16",
    "step optimizer=AdamW tensors=40 fused=True",
    "image operator=max_pool2d direction=backward shape=16x64x56x56",
)
# Errors of calls of the catalogue on an emulated device, in full size without values; no other is expected.
REFUSED = (
    "needs the values of a tensor", "No available kernel", "not been compiled with cuBLASLt", "aten::_cslt_compress",
    "driver version is insufficient",  # semi-structured products of the CUDA build, which no kernel replaces
)  # fmt: skip


@pytest.fixture
def gpu(monkeypatch):
    """The modules of tools/gpu."""
    monkeypatch.syspath_prepend(TOOLS)
    from gpu import compare_workspaces, operator_calls, part, workspaces

    class Modules:
        pass

    made = Modules()
    made.comparison, made.calls, made.part, made.workspaces = compare_workspaces, operator_calls, part, workspaces
    yield made
    for name in [name for name in sys.modules if name == "gpu" or name.startswith("gpu.")]:
        del sys.modules[name]


@pytest.fixture
def some(gpu):
    chosen = [call for call in gpu.calls.catalogue() if call.name in SOME]
    assert len(chosen) == len(SOME)
    return chosen


@pytest.fixture
def record(gpu, some, tmp_path):
    """A file as a GPU would have written it, of what the emulated device allocates."""
    with gpu.comparison.emulated_like(MACHINE):
        found = gpu.comparison.run_emulated(some)
    measured = gpu.workspaces.Measurements(some, MACHINE, {at: found[call.name] for at, call in enumerate(some)})
    measured.save(gpu.part.Job(tmp_path, time.monotonic() + 60))
    return tmp_path / gpu.workspaces.FILE


def states(gpu, path):
    return {each.name: (each.state, each.detail) for each in gpu.comparison.compare(gpu.comparison.read(path))}


def test_record_of_the_emulated_device_equals_it(gpu, record):
    assert states(gpu, record) == dict.fromkeys(SOME, ("equal", ""))
    (row,) = [each for each in json.loads(record.read_text())["calls"] if each["name"] == SOME[1]]
    assert row["first"]["rows"] == [4 << 20, 32 << 20, -2]  # the result, and the workspace of cuBLAS
    assert row["inputs"] == [["float32", [1024, 1024]], ["float32", [1024, 1024]]]
    assert row["outputs"] == [["float32", [1024, 1024]]]


def test_kept_file_is_read_as_the_part_wrote_it(gpu, record, tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"machine": {}, "workloads": {}, "workspaces": json.loads(record.read_text())}))
    assert gpu.comparison.read(kept) == gpu.comparison.read(record)


def test_changed_records_are_told_apart(gpu, record):
    content = json.loads(record.read_text())
    rows = {each["name"]: each for each in content["calls"]}
    rows[SOME[0]]["first"]["rows"].append(77)
    rows[SOME[1]]["first"]["rows"].pop()
    rows[SOME[2]]["second"] = {"rows": [5, 5, -1, -2], "peak": 10}
    rows[SOME[3]]["error"] = "RuntimeError: refused"
    rows[SOME[4]]["name"] = "a call of another version"
    record.write_text(json.dumps(content))
    found = states(gpu, record)
    assert found[SOME[0]] == ("differs", "first call: missing 77")
    assert found[SOME[1]][0] == "other frees"
    assert found[SOME[2]][0] == "differs"
    assert found[SOME[2]][1].startswith("second call: missing 2 x 5, too many ")
    assert found[SOME[3]] == ("not recorded", "RuntimeError: refused")
    assert found["a call of another version"][0] == "not recorded"
    assert found[SOME[5]] == ("equal", "")


def test_unknown_card_is_named(gpu):
    with (
        pytest.raises(ValueError, match="no profile of Card X"),
        gpu.comparison.emulated_like({**MACHINE, "name": "Card X"}),
    ):
        pass


def test_comparison_is_printed(gpu, record, capsys):
    assert gpu.comparison.main([str(record), "--all"]) == 0
    printed = capsys.readouterr().out
    assert f"| all | {len(SOME)} | 0 | 0 | 0 | 0 |" in printed
    assert f"* {SOME[0]}: equal" in printed


@on_oracle
def test_calls_allocate_what_the_real_pytorch_allocates(gpu, some, tmp_path):
    libraries = ":".join(map(str, stub_libraries.build()))
    program = f"""
import ctypes, sys, time
from pathlib import Path
for library in {libraries!r}.split(":"):
    ctypes.CDLL(library)  # libraries of the same name are not loaded again
import torch
from gpu import operator_calls, part, workspaces
some = [call for call in operator_calls.catalogue() if call.name in {SOME!r}]
workspaces.run_calls(part.Job(Path({str(tmp_path)!r}), time.monotonic() + {ORACLE_SECONDS - 10}), torch, some)
"""
    environment = {**os.environ, "PYTHONPATH": str(TOOLS), "OMP_NUM_THREADS": "1"}
    command = ["bash", str(ORACLE), "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ORACLE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert states(gpu, tmp_path / gpu.workspaces.FILE) == dict.fromkeys(SOME, ("equal", ""))


def test_calls_of_the_catalogue_have_valid_arguments_in_full_size(gpu):
    calls = [call for call in gpu.calls.catalogue() if call.operator != "layers"]  # they would run for minutes
    with gpu.comparison.emulated_like(MACHINE):
        found = gpu.comparison.run_emulated(calls)
    errors = {name: each["error"] for name, each in found.items() if "error" in each}
    assert {name: text for name, text in errors.items() if not any(each in text for each in REFUSED)} == {}
    assert len(errors) < len(calls) / 8


def test_known_differences_keep_their_reasons(gpu, tmp_path):
    path = tmp_path / "known.toml"
    states = {"one": "differs", "two": "other frees", "three": "equal", "four": "not recorded", "five": "cannot run"}
    compared = [gpu.comparison.Comparison("family", name, state) for name, state in states.items()]
    gpu.comparison.write_known(path, compared)
    assert gpu.comparison.read_known(path) == {gpu.comparison.TO_EXAMINE: ["one", "two"]}
    path.write_text('[[known]]\nreason = "a \\"reason\\""\ncalls = ["two", "three"]\n')
    gpu.comparison.write_known(path, compared)
    assert gpu.comparison.read_known(path) == {'a "reason"': ["two"], gpu.comparison.TO_EXAMINE: ["one"]}


@pytest.mark.parametrize("path", FILES)
def test_recorded_calls_allocate_the_same_but_for_known_differences(gpu, path):
    known_file = path.with_suffix(".differs.toml")
    known = {name for names in gpu.comparison.read_known(known_file).values() for name in names}
    compared = gpu.comparison.compare(gpu.comparison.read(path))
    unequal = {each.name: each.detail for each in compared if each.state in gpu.comparison.UNEQUAL}
    how = f"run python -m gpu.compare_workspaces {path.name} --known {known_file.name}, and read what it changes"
    assert {name: text for name, text in unequal.items() if name not in known} == {}, how
    assert sorted(known - unequal.keys()) == [], how
