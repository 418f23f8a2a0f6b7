"""Checks of compiled kernels on emulated cards."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="triton is no requirement of the CPU builds of PyTorch")

from support import triton_kernels as kernels  # noqa: E402 -- the tests need Triton, which is looked for first
from support.json_schemas import check  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.errors import ForebayWarning  # noqa: E402 -- as above
from forebay.interop.torch.devices.patching import patch  # noqa: E402 -- as above
from forebay.interop.torch.processes import checked_kernels  # noqa: E402 -- as above

PROGRAM = """
import torch
from support import triton_kernels as kernels
x, out = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")
kernels.add_unmasked[(5,)](x, out, block=64)
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as by default, of which Triton 3.9 warns


@pytest.fixture
def _checking():
    checked_kernels.begin(checks=True)
    yield
    checked_kernels.begin(checks=False)
    checked_kernels.clear()


@pytest.mark.usefixtures("_checking")
def test_kernels_are_listed_with_what_they_take_and_what_is_wrong():
    with forebay.emulate("cuda", profile="rtx-4090"), patch("compute"):
        x, out = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")
        with pytest.warns(ForebayWarning, match="outside a tensor"):
            kernels.add_unmasked[(5,)](x, out, block=64)
        large = torch.ones(128, 512, device="cuda", dtype=torch.float16)
        with pytest.raises(triton.runtime.errors.OutOfResources):
            kernels.large[(1,)](large, torch.zeros(128, 128, device="cuda"), n=128, k=512)
    one, other = checked_kernels.found()
    assert (one.kernel, one.target, one.warps, one.is_too_large, one.spilled) == ("add_unmasked", "sm_89", 4, False, 0)
    assert one.line == f"{kernels.__file__}:{kernels.add_unmasked.fn.__code__.co_firstlineno}"
    assert one.registers > 0
    assert [each.partition(":")[0] for each in one.outside] == ["reads outside a tensor", "writes outside a tensor"]
    assert (other.kernel, other.most_shared, other.is_too_large) == ("large", 101376, True)
    assert other.shared > other.most_shared


def test_run_lists_the_kernels(tmp_path):
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    command = ["run", "--emulate", "cuda@h100", "--compute", "--check-kernels", "--output", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "forebay", *command, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 kernel of Triton, 1 with findings" in done.stderr
    assert "reads outside a tensor: byte 512 of x, which has 512, in program (2, 0, 0)" in done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    check("summary", summary)
    assert [each["kernel"] for each in summary["kernels"]] == ["add_unmasked"]
