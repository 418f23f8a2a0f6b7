"""`dev.py gpu`, rehearsed on the software driver, and with parts that fail, hang or cannot run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from textwrap import dedent

import pytest
from support import software_driver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

LIMIT = 60  # seconds


def run(root, *arguments, variables=None, program=None):
    """Run the task, or a program that may import its modules, on the software driver."""
    paths = [f"{root / folder}" for folder in ("tools", "tests", "src")]
    environment = software_driver.environment(PYTHONPATH=":".join(paths), **(variables or {}))
    command = ["-c", dedent(program)] if program else ["-m", "gpu", *map(str, arguments)]
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def tracked_results(root):
    files = [root / "docs/benchmarks-gpu.md", root / "src/forebay/backends/verified.toml"]
    return [file.read_text() if file.exists() else None for file in files]


def test_rehearsal_runs_to_its_end_and_verifies_nothing(root, tmp_path):
    before = tracked_results(root)
    done = run(root, "--quick", "--output", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for title in ("Conformance suite", "Recorded scenes of torch.cuda", "Graphs", "Benchmarks"):
        assert f"{title} ... ok after" in done.stdout
    page = (tmp_path / "benchmarks-gpu.md").read_text()
    assert "rehearsal on the software driver: nothing was verified on hardware" in page
    assert "| record and query an event | µs |" in page
    assert tomllib.loads((tmp_path / "verified.toml").read_text()) == {}
    assert tracked_results(root) == before


def test_rehearsal_needs_an_output_folder(root):
    done = run(root, "--quick")
    assert done.returncode == 1
    assert "this is the software driver" in done.stderr


def test_reason_is_given_without_a_gpu(root):
    done = run(root, variables={"SOFTCUDA_DEVICES": "0"})
    assert done.returncode == 1
    assert "no GPU to test: " in done.stderr


def test_unknown_part_is_refused(root):
    done = run(root, "speed")
    assert done.returncode == 2
    assert "unknown part 'speed'; known: conformance, " in done.stderr


def test_part_that_hangs_is_stopped(root, tmp_path):
    program = """
    import gpu.parts
    gpu.parts.PARTS = parts = (gpu.parts.Part("hanging", "Hanging", 1.0), gpu.parts.Part("ending", "Ending", 20.0))
    for part in parts:
        result = gpu.parts.run_part(part, quick=True)
        print(result.outcome.status, result.outcome.detail, result.outcome.lines[1:2])
    """
    package = tmp_path / "gpu"
    package.mkdir()
    for file in (root / "tools/gpu").glob("*.py"):
        (package / file.name).symlink_to(file)
    (package / "hanging.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    (package / "ending.py").write_text("import os\nos._exit(3)\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{dedent(program)}"
    program = program.replace(
        "import gpu.parts", f"import gpu.parts, pathlib\ngpu.parts.TOOLS = pathlib.Path({str(tmp_path)!r})", 1
    )
    done = run(root, program=program)
    assert done.stdout.splitlines() == [
        "failed stopped after 1 s ['begun']",
        "failed its process ended with 3 ['```']",
    ], done.stderr
