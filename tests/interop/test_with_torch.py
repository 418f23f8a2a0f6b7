"""The tests that need PyTorch, in the environment .venv/torch: each group in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.beside import TORCH, needs_torch, paths_of_sources
from support.on_oracle import ORACLE_HOME, why_no_oracle

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
NEEDS_TORCH = re.compile(r"importorskip\(\s*\"torch\"|find_spec\(\"torch\"\) is None")
IN_ANY_BUILD = (  # what they test does not depend on the build or the version of PyTorch: processes, cards and tables
    "tests/interop/torch/fit/",
    "tests/interop/torch/training/",
    "tests/interop/torch/attribution/test_shared_results.py",
)
# test_interrupts is short, but alone: beside the other files of its folder, two of four processes under load died of a
# segmentation fault in `pin_memory()` (November 2026, cause not found), and none of three in which it was alone.
LONG = (  # groups in the order of their processor time, which begin first: folders, and files that are alone
    "devices", "test_run_rehearsal", "fit", "test_questions", "test_run_torch", "torch", "attribution", "kernels",
    "assumptions", "test_interrupts", "test_half_operators", "test_distributed_training", "test_collectives",
    "extensions", "test_operator_database", "test_allocation_sequences",
)  # fmt: skip
PYTEST = "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
SOURCES = ["--doctest-modules", "src/forebay/interop/torch", "tests/house/test_public_names.py", "-k=interop.torch"]


def groups() -> dict[str, list[str]]:
    """Return the arguments of pytest for each group: long files alone, the files of a folder, the sources."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path != Path(__file__) and NEEDS_TORCH.search(path.read_text()):
            group = path if path.stem in LONG else path.parent
            found.setdefault(str(group.relative_to(TESTS)), []).append(str(path.relative_to(ROOT)))
    ordered = sorted(found, key=lambda group: [*LONG, Path(group).stem].index(Path(group).stem))
    return {group: found[group] for group in ordered} | {"doctests and public names": SOURCES}


GROUPS = groups()
WITH_CUDA_BUILD = {
    group: [path for path in paths if not path.startswith(IN_ANY_BUILD)]
    for group, paths in GROUPS.items()
    if group.startswith("interop/torch")
}
WITH_CUDA_BUILD = {group: paths for group, paths in WITH_CUDA_BUILD.items() if paths}


def run(python: Path, tests: list[str], *, first: str = "", last: str = "") -> str:
    """Run tests, which must pass, and return what pytest prints.

    Packages are found in the folder `first`, then in the environment of Python, then in the folder `last`.
    """
    options = ["-q", "-rs", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [str(python), "-c", PYTEST, last, *options, *tests]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (paths_of_sources(), first)))}
    environment["OMP_NUM_THREADS"] = "1"  # other workers run beside it
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=590, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert " passed" in done.stdout
    return done.stdout


@needs_torch
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.timeout(600)
def test_group_passes_with_torch(group):
    printed = run(TORCH, GROUPS[group])
    assert "is not installed" not in printed, printed  # no test may be skipped here for that reason


@pytest.mark.oracle
@needs_torch
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle())
@pytest.mark.parametrize("group", WITH_CUDA_BUILD)
@pytest.mark.timeout(600)
def test_group_passes_with_the_cuda_build_of_pytorch(group):
    """With the PyTorch of the oracle, of another version than that of .venv/torch, and without a driver."""
    packages = sysconfig.get_path("purelib", vars={"base": str(TORCH.parents[1])})
    python = ORACLE_HOME / "venv/bin/python"
    run(python, WITH_CUDA_BUILD[group], first=sysconfig.get_path("purelib"), last=packages)
