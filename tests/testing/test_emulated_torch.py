"""The fixture `emulated_torch`, in test files of a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

TESTS = """
import pytest

@pytest.mark.emulated_torch(profile="rtx_4090", memory="64MiB")
def test_device(emulated_torch):
    import torch
    assert torch.cuda.get_device_name().startswith("NVIDIA GeForce RTX 4090")
    kept = torch.ones(1 << 20, device="cuda")
    assert kept.sum().item() == 1 << 20
    assert (4 << 20) + 512 <= emulated_torch.peak_allocated < (4 << 20) + 8192  # the sum, and what its kernel takes
    assert emulated_torch.peak_reserved >= 4 << 20
    emulated_torch.assert_peak("5MiB")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(1 << 26, device="cuda")

@pytest.mark.emulated_torch(mode="shapes", peak="1GiB")
def test_too_much(emulated_torch):
    import torch
    torch.ones(1 << 30, device="cuda")

def test_restored(emulated_torch):
    import torch
    assert torch.cuda.memory_allocated() == 0

@pytest.mark.emulated_torch(profile="rtx_4090", memory="3GiB")  # of which 261 to 509 MiB are outside the allocator
def test_verdicts(emulated_torch):
    import torch
    assert emulated_torch.verdict == "no device memory used"
    with pytest.raises(pytest.fail.Exception, match="No device memory used"):
        emulated_torch.assert_fits()
    with pytest.raises(pytest.fail.Exception, match="the peak is not known: no device memory used"):
        emulated_torch.assert_peak("5MiB")
    kept = torch.ones(1 << 20, device="cuda")
    assert emulated_torch.verdict == "fits"
    more = torch.empty(2772 << 20, dtype=torch.uint8, device="cuda")
    assert emulated_torch.verdict == "tight"
    emulated_torch.assert_fits()
    with pytest.raises(pytest.fail.Exception, match="Tight. 280.00 MiB of cuda:0 were never reserved"):
        emulated_torch.assert_fits(tight=False)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(20 << 20, device="cuda")
    assert emulated_torch.verdict == "fits after caught out-of-memory errors"
    emulated_torch.assert_fits(tight=False)

@pytest.mark.emulated_torch(mode="strict", peak="1GiB")
def test_unread(emulated_torch):
    import torch
    try:
        torch.randn(3, device="cuda").sum().item()
    except Exception:
        pass
    assert emulated_torch.verdict == "did not finish"

@pytest.mark.emulated_torch(mode="shapes", peak="1GiB")
def test_assumed(emulated_torch):
    import torch
    assert 1 < torch.randn(3, device="cuda").sum().item() < 2
    assert [each.line.rpartition(": ")[2] for each in emulated_torch.assumptions] == [
        'assert 1 < torch.randn(3, device="cuda").sum().item() < 2'
    ]
    assert emulated_torch.verdict == "fits"

@pytest.mark.emulated_torch(mode="shapes", peak="1GiB")
def test_known(emulated_torch):
    import torch
    assert torch.ones(3, device="cuda").sum().item() == 3
    assert emulated_torch.verdict == "fits"
"""


def run(folder, source, *options):
    (folder / "conftest.py").write_text('pytest_plugins = ["forebay.testing.plugin"]\n')
    (folder / "test_it.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", *options], cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.stdout


@needs_torch
def test_marker_chooses_the_device_and_limits_the_peak(tmp_path):
    output = run(tmp_path, TESTS)
    assert "7 passed, 2 errors" in output, output
    assert "the peak is not known: did not finish. A value is needed that is not computed with shapes only" in output
    assert "cuda:0: the peak is 4.00 GiB, 3.00 GiB more than 1.00 GiB\n  4.00 GiB temporaries\n" in output
    assert "  by line: 4.00 GiB" in output


def test_missing_pytorch_is_the_reason_of_a_skip(tmp_path):
    output = run(tmp_path, "import sys\nsys.modules['torch'] = None\ndef test(emulated_torch): pass\n", "-rs")
    assert "1 skipped" in output
    assert "PyTorch is not installed" in output
