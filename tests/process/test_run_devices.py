"""Devices that `forebay run` reports: emulated devices, and the CPU device with and without a limit."""

from __future__ import annotations

import os

import pytest

from forebay.snapshot.formats import native

USES_CUDA = """
    import forebay as torch
    kept = [torch.empty(4 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
    print(torch.cuda.device_count(), torch.cuda.mem_get_info()[1], torch.cuda.is_initialized())
    torch.cuda.synchronize()
"""


def test_every_emulated_device_is_reported_and_has_the_memory(runner):
    observed = runner.forebay(USES_CUDA, options=("--emulate", "cuda:2@h200", "--compute", "--memory", "64MiB"))
    assert (observed.status, observed.out) == (0, f"2 {64 << 20} True\n")
    first, second = observed.err.index("Memory of cuda:0"), observed.err.index("Memory of cuda:1")
    assert (
        "script.py:3 <listcomp>" in observed.err[first:second] or "script.py:3 <module>" in observed.err[first:second]
    )
    assert "Nothing was allocated on the device." in observed.err[second:]
    assert "Memory of cpu" not in observed.err
    found = [native.read(observed.output / f"snapshot-cuda-{index}.forebay") for index in range(2)]
    assert [(each.device, each.capacity) for each in found] == [("cuda:0", 64 << 20), ("cuda:1", 64 << 20)]
    assert [each.stats["allocation.all.allocated"] for each in found] == [3, 0]
    assert "cuda:1" in (observed.output / "report.html").read_text()


def test_emulated_device_runs_out_of_the_given_memory(runner):
    source = "import forebay\nforebay.empty(1 << 30, dtype=forebay.uint8, device='cuda')"
    observed = runner.forebay(source, options=("--emulate", "cuda", "--compute", "--memory", "64MiB"))
    assert observed.status == 1
    assert "total capacity of 64.00 MiB" in observed.err
    assert "cuda:0 ran out of memory" in observed.err


def test_arrays_are_reported_beside_emulated_devices(runner):
    source = "import numpy as np, forebay\nkept = np.ones(1 << 20), forebay.empty(1 << 20, device='cuda')"
    observed = runner.forebay(source, options=("--emulate", "cuda", "--compute"))
    assert "Memory of cpu" in observed.err
    assert "Memory of cuda:0" in observed.err
    assert sorted(path.name for path in observed.output.glob("*.forebay")) == [
        "snapshot-cpu.forebay",
        "snapshot-cuda-0.forebay",
    ]


def test_emulation_is_not_started_by_the_recording(runner):
    source = "import forebay\nprint(forebay.cuda.is_initialized())"
    observed = runner.forebay(source, options=("--emulate", "cuda", "--compute"))
    assert observed.out == "False\n"


SPARSE = """
    import numpy as np
    array = np.zeros(2_450_000_000)
    print(array.nbytes)
"""


def test_memory_is_unlimited_by_default(runner):
    observed = runner.same(SPARSE)
    assert observed.snapshot.capacity == 0
    assert "18.25 GiB" in observed.err


def test_environment_variable_limits_the_memory(runner):
    observed = runner.forebay(SPARSE, env={**os.environ, "FOREBAY_CPU_MEMORY": "1GiB"})
    assert observed.status == 1
    assert "total capacity of 1024.00 MiB" in observed.err


def test_refusal_of_the_system_is_explained(runner):
    observed = runner.forebay("import numpy as np\nnp.zeros(1 << 42)", options=("--no-history",))
    assert observed.status == 1
    assert "The device has no limit: the system refused the memory." in observed.own
    assert "unlimited" not in observed.own


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal(runner, width):
    source = "import numpy as np\narray = np.zeros(2_450_000_000)\ntry: np.zeros(1 << 42)\nexcept MemoryError: pass"
    observed = runner.forebay(source, env={**os.environ, "COLUMNS": str(width)})
    table = observed.err.split("snapshot  ")[0]
    assert max(len(line.rstrip()) for line in table.splitlines() if "files are in" not in line) <= width
    for words in ("18.25 GiB", "32.00 TiB", "largest free block", "fragmentation"):
        assert words in table
    assert "…" not in table.split("Top allocation")[0]
