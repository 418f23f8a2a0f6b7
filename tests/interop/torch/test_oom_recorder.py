"""record_oom(): with the real PyTorch over the oracle, and its reasons without one."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from support.on_oracle import ORACLE, why_no_oracle

import forebay
from forebay import snapshot
from forebay.errors import ForebayWarning
from forebay.interop.torch import record_oom
from forebay.interop.torch.oom_recorder import OomRecorder
from forebay.snapshot.report.incident_files import IncidentFiles

PROGRAM = """
import sys, torch
from forebay.interop.torch import record_oom
from forebay.interop.torch.oom_recorder import OomRecorder
from forebay.snapshot.report.incident_files import IncidentFiles

recorder = record_oom(sys.argv[1], entries=1000)
assert recorder.why_not == ""
kept = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda:1") for _ in range(5)]
for _ in range(2):
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda:1")
    except torch.OutOfMemoryError as error:
        assert "Tried to allocate 1024.00 GiB" in str(error)
recorder.stop()
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda:1")
except torch.OutOfMemoryError:
    pass
assert len(recorder.written) == 2
"""


@pytest.mark.oracle
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle())
def test_pytorch_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join(
        [str(Path(forebay.__file__).parents[1]), *(each for each in sys.path if "-packages" in each)]
    )
    done = subprocess.run(
        ["bash", ORACLE, str(tmp_path / "program.py"), str(tmp_path / "files")],
        env={**os.environ, "PYTHONPATH": path, "FAKE_CUDA_DEVICES": "2"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    pickles = sorted((tmp_path / "files").glob("oom-*-cuda-1.pickle"))
    assert len(pickles) == 2, done.stderr  # the stand-in may crash at the exit of the process
    found = next(each for each in snapshot.load(pickles[0]) if each.device == "cuda:1")
    assert found.blocks["requested"].sum() == 500 << 20
    text = pickles[0].with_suffix(".txt").read_text()
    assert "cuda:1 ran out of memory" in text
    assert "program.py:9 <listcomp>" in text


def torch_module(**attributes):
    module = types.ModuleType("torch")
    module.__version__ = "2.15.0"
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


WITHOUT_CUDA = torch_module(_C=types.SimpleNamespace())
WITHOUT_GPU = torch_module(
    _C=types.SimpleNamespace(_cuda_attach_out_of_memory_observer=None),
    cuda=types.SimpleNamespace(is_available=lambda: False),
)


@pytest.mark.parametrize(
    ("torch", "reason"),
    [(None, "cannot be imported"), (WITHOUT_CUDA, "built without CUDA"), (WITHOUT_GPU, "finds no GPU")],
)
def test_reason_without_usable_pytorch(tmp_path, monkeypatch, torch, reason):
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.warns(ForebayWarning, match=reason):
        recorder = record_oom(tmp_path)
    assert reason in recorder.why_not
    assert recorder.write() is None
    assert list(tmp_path.iterdir()) == []


def test_device_that_failed_is_no_obstacle(tmp_path):
    def current_device():
        raise RuntimeError("CUDA error: device-side assert triggered")

    memory = types.SimpleNamespace(_snapshot=lambda: {"segments": [], "device_traces": []})
    torch = torch_module(cuda=types.SimpleNamespace(current_device=current_device, memory=memory))
    recorder = OomRecorder(IncidentFiles(tmp_path, ".pickle", 1, False), (), "", torch)
    try:
        path = recorder.write("exit")
    finally:
        recorder.stop()
    assert path.name == f"exit-{os.getpid()}-1-cuda-0.pickle"
    assert "cuda:0" in path.with_suffix(".txt").read_text()


@pytest.mark.parametrize("named", [{"on": ["always"]}, {"entries": 0}, {"limit": -1}])
def test_invalid_arguments(tmp_path, named):
    with pytest.raises(ValueError, match=r"on must|entries must|limit must"):
        record_oom(tmp_path, **named)
