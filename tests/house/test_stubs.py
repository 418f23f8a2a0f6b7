"""Stubtest finds planted errors; it is silent if it compares the wrong modules. `dev.py check` checks the stubs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

PLANTS = {  # module: text in its stub, and the planted error
    "_core": [
        ("def try_allocate(\n        self, nbytes: int, ", "def try_allocate(\n        self, amount: int, "),
        ("class Pool:\n", "class Pool:\n    def not_there(self) -> int: ...\n"),
    ],
    "observe/tracing/_entries": [("def add(self, entry_type: int, ", "def add(self, what: int, ")],
    "backends/common/_segments": [("def reserve(self, nbytes: int)", "def reserve(self, size: int)")],
    "runtime/allocator/_reservations": [("def evict_into(\n    entries:", "def evict_into(\n    rows:")],
    "runtime/pinned/_cache": [("def allocate(self, size: int, ", "def allocate(self, nbytes: int, ")],
}


@pytest.mark.timeout(300)  # mypy reads NumPy's stubs when its cache is empty
def test_planted_errors_are_found(dev, root, tmp_path):
    shutil.copytree(root / "src/forebay", tmp_path / "forebay", ignore=shutil.ignore_patterns("*.so"))
    for module, plants in PLANTS.items():
        stub = tmp_path / f"forebay/{module}.pyi"
        text = stub.read_text()
        for correct, planted in plants:
            assert correct in text
            text = text.replace(correct, planted, 1)
        stub.write_text(text)
    command = [sys.executable, *dev.STUBTEST, *dev.compiled_modules()]
    paths = os.environ | {"MYPYPATH": str(tmp_path)}
    found = subprocess.run(command, cwd=root, env=paths, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    for error in (
        "Pool.try_allocate",
        "Pool.not_there",
        "_entries.Entries.add",
        "_cache.PinnedCache.allocate",
        "_segments.HostSegments.reserve",
        "_reservations.evict_into",
    ):
        assert error in found.stdout
