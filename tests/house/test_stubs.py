"""The stubs say what is compiled. Stubtest is silent when it looks in the wrong place, so first it must find plants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)  # mypy reads NumPy's stubs when its cache is empty


def stubtest(dev, root, stubs):
    environment = os.environ | {"MYPYPATH": str(stubs)}
    command = [sys.executable, *dev.STUBTEST]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "true", "planted"),
    [
        ("_core", "def take(self, nbytes: int, ", "def take(self, amount: int, "),
        (
            "_core",
            "def broken(self) -> str | None: ...",
            "def broken(self) -> str | None: ...\n    def not_there(self) -> int: ...",
        ),
        ("observe/_entries", "def add(self, about: int, ", "def add(self, what: int, "),
    ],
)
def test_a_planted_error_is_found(dev, root, tmp_path, module, true, planted):
    shutil.copytree(root / "src/forebay", tmp_path / "forebay", ignore=shutil.ignore_patterns("*.so"))
    stub = tmp_path / f"forebay/{module}.pyi"
    assert true in stub.read_text()
    stub.write_text(stub.read_text().replace(true, planted))
    found = stubtest(dev, root, tmp_path)
    assert found.returncode == 1, found.stderr
    assert f"forebay.{module.replace('/', '.')}." in found.stdout


def test_the_stub_is_true(dev, root):
    found = stubtest(dev, root, root / "src")
    assert found.returncode == 0, found.stdout + found.stderr
