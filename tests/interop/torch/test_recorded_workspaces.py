"""What calls of operators allocated on real GPUs, and over the oracle, compared with emulated devices.

The records of GPUs are those that `dev.py gpu --keep` has put into tests/data/gpu-truth, see tools/gpu/workspaces.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="compares calls of PyTorch on emulated devices")

from support import stub_cublas  # noqa: E402 -- needs torch
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
# Calls for which emulated devices allocate something else than GPUs: patterns of their names, with the reason.
DIFFERS = {
    r"convolution ": "workspaces of cuDNN are not counted",
    r"layers kind=": "the layers of cuDNN are not emulated",
    r"sdpa backend=cudnn": "the workspace of cuDNN's attention is an estimate",
    r"linear algebra ": "workspaces of cuSOLVER and MAGMA are not counted",
    r"transform ": "workspaces of cuFFT are not counted",
    r"(sparse|structured) ": "workspaces of cuSPARSE are not counted",
}


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
    libraries = ":".join(map(str, stub_cublas.build()))
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


@pytest.mark.parametrize("path", FILES)
def test_recorded_calls_allocate_the_same_but_for_known_differences(gpu, path):
    compared = [each for each in gpu.comparison.compare(gpu.comparison.read(path)) if each.state in gpu.comparison.RAN]
    unequal = [each for each in compared if each.state != "equal"]
    unexplained = [each for each in unequal if not any(re.match(pattern, each.name) for pattern in DIFFERS)]
    assert [f"{each.name}: {each.state}, {each.detail}" for each in unexplained] == []
    for pattern in DIFFERS:  # none explains more than it has to
        matching = [each for each in compared if re.match(pattern, each.name)]
        assert sum(each.state != "equal" for each in matching) >= len(matching) / 2, pattern
