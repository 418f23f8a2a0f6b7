"""PyTorch's environment variables for MPS, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import forebay
from forebay import mps
tensor = forebay.zeros(1000, device="mps")
large = forebay.zeros(1 << 20, device="mps")
del large
mps.synchronize()
copy = tensor.clone()
print(copy.cpu().tolist() == [0.0] * 1000)
"""


def lines(tmp_path, **variables: str) -> list[str]:
    """Return the lines about MPS that the program prints on standard error."""
    environment = {**os.environ, "FOREBAY_EMULATE": "mps@apple_m4", **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    found = done.stderr.splitlines()
    assert all(line.startswith("MPS: ") for line in found), done.stderr
    return [line.removeprefix("MPS: ") for line in found]


def test_nothing_is_printed_by_default(tmp_path):
    assert lines(tmp_path) == []


def test_allocator_log_prints_what_is_requested(tmp_path):
    found = lines(tmp_path, PYTORCH_DEBUG_MPS_ALLOCATOR="2")
    assert found[0].startswith("allocated 3.91 KiB at 0x")
    assert found[1].startswith("allocated 4.00 MiB at 0x")
    assert all(line.startswith("allocated ") for line in found)
    found = lines(tmp_path, PYTORCH_DEBUG_MPS_ALLOCATOR=str(2 | 4 | 16))
    assert [line.split(" at ")[0] for line in found] == ["allocated 4.00 MiB", "freed 4.00 MiB"]
    found = lines(tmp_path, PYTORCH_DEBUG_MPS_ALLOCATOR=str(1 | 8))
    assert found[0].startswith("reserved 8.00 MiB, before 0 B; ")
    assert found[-1].startswith("summary; ")


def test_operation_log_prints_operations_copies_and_totals(tmp_path):
    operations = lines(tmp_path, PYTORCH_MPS_LOG_PROFILE_INFO="1")
    copies = lines(tmp_path, PYTORCH_MPS_LOG_PROFILE_INFO="2")
    assert len(operations) >= 2
    assert not any(line.startswith("copy ") for line in operations)
    assert len(copies) == 2
    assert all(line.startswith("copy ") for line in copies)
    totals = lines(tmp_path, PYTORCH_MPS_LOG_PROFILE_INFO="8")
    assert sum(int(line.split(": ")[1].split(",")[0]) for line in totals) == len(operations) + len(copies)
    assert all("copy " in line for line in lines(tmp_path, PYTORCH_MPS_LOG_PROFILE_INFO="32"))


def test_trace_of_the_whole_program_is_written(tmp_path):
    file = tmp_path / "trace.pftrace"
    assert lines(tmp_path, PYTORCH_MPS_TRACE_SIGNPOSTS="3", FOREBAY_TRACE=str(file)) == []
    assert file.stat().st_size > 100


def test_invalid_value_is_named(tmp_path):
    environment = {**os.environ, "FOREBAY_EMULATE": "mps", "PYTORCH_DEBUG_MPS_ALLOCATOR": "much"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "ValueError: environment variable PYTORCH_DEBUG_MPS_ALLOCATOR: 'much' is not a sum of options" in done.stderr
