"""`dev.py gpu`, rehearsed on the software driver, and with parts that fail, hang or cannot run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from runpy import run_path
from textwrap import dedent

import pytest
from support import software_driver
from support.beside import NUMBA, paths_of_sources
from support.oracle_programs import on_oracle, run_on_oracle

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


@pytest.fixture
def as_torch(tmp_path):
    """Variables with which forebay is the module torch, in place of PyTorch."""
    (tmp_path / "torch.py").write_text("import sys, forebay, forebay.cuda\nsys.modules['torch'] = forebay\n")
    return f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"


def test_random_numbers_are_compared_bit_for_bit(root, as_torch):
    program = as_torch + dedent("""
    from gpu import random_numbers
    from gpu.part import Job
    from pathlib import Path
    job = Job(Path(), 0.0, quick=True)
    same = random_numbers.compare(job)
    print(same.status, same.detail.partition(" are")[0])
    seeds = iter([1, 2] * 1000)
    random_numbers.SIZES, random_numbers.DRAWS = (1000,), random_numbers.DRAWS[:1]
    seed = random_numbers.forebay.manual_seed
    random_numbers.forebay.manual_seed = lambda _: seed(next(seeds))
    other = random_numbers.compare(job)
    print(other.status, len(other.lines))
    print(other.lines[0])
    """)
    done = run(root, program=program)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "ok 38 of 38 draws"
    assert second == "failed 4"
    assert third.startswith("* rand, float32, 1,000 numbers, draw 1: ")


def test_allocator_statistics_are_compared_key_by_key(root):
    program = """
    from forebay import cuda
    from forebay.runtime.lifecycle.emulation import reset_kind
    from gpu.allocator_statistics import differences, statistics
    found = []
    for _ in range(2):
        found.append(statistics(cuda, 300))
        reset_kind("cuda")
    print(differences(*found), len(found[0]) > 5, found[0][-1]["num_device_alloc"] > 10)
    found[1][3]["num_ooms"] = 1
    del found[0][4]["num_ooms"]
    print("\\n".join(differences(*found)))
    """
    done = run(root, program=program)
    assert done.stdout.splitlines() == [
        "[] True True",
        "* look 3, `num_ooms`: forebay 0, PyTorch 1",
        "* look 4, `num_ooms`: forebay none, PyTorch 0",
    ], done.stderr


def test_replayed_graph_that_differs_is_reported(root):
    program = """
    from gpu import graphs
    from gpu.part import Job
    from pathlib import Path
    calls = []
    def counted(tensors):
        calls.append(1)
        tensors["a"].fill_(float(len(calls)))  # captured once, but executed with other values at once
    graphs.WORK = {"counted": counted}
    outcome = graphs.compare(Job(Path(), 0.0, quick=True))
    print(outcome.status, outcome.lines[0])
    """
    done = run(root, program=program)
    assert done.stdout.strip() == (
        "failed * counted, replay 1, tensor a: 1001 of 1001 differ, first at 0: 5.0 instead of 1.0"
    ), done.stderr


def test_exchange_that_copies_is_reported(root):
    program = """
    import forebay
    from gpu.interoperability import COUNT, check
    ours = forebay.ones(COUNT, device="cuda")
    print(check(ours, forebay.from_dlpack, forebay.cuda.synchronize) or "ok")
    print(check(ours, lambda tensor: tensor.clone(), forebay.cuda.synchronize).partition(": ")[2])
    """
    done = run(root, program=program)
    assert done.stdout.splitlines() == ["ok", "the memory was copied"], done.stderr


def test_library_that_does_not_allocate_from_forebay_is_reported(root):
    program = """
    from gpu.shared_allocators import is_installed, problem_of
    print(problem_of("pass") or "ok", problem_of("assert 1 == 2, 'not counted'"))
    print(is_installed("json.decoder"), is_installed("absent.module"))
    """
    done = run(root, program=program)
    assert done.stdout.splitlines() == ["ok ended with 1: AssertionError: not counted", "True False"], done.stderr


@pytest.fixture
def programs(root):
    return run_path(str(root / "tools/gpu/shared_allocators.py"))["PROGRAMS"]


@pytest.mark.skipif(not NUMBA.exists(), reason="numba-cuda is not installed: `python3 dev.py test` installs it")
def test_program_of_numba_runs_on_the_software_driver_without_its_kernel(programs):
    _, program, kernel = programs["Numba allocates from forebay"]
    done = software_driver.run(program, python=str(NUMBA), PYTHONPATH=paths_of_sources())
    assert done.returncode == 0, done.stderr
    compile(program + kernel, "kernel", "exec")


@on_oracle
def test_program_of_torch_runs_on_the_oracle_without_its_training(programs):
    _, program, training = programs["PyTorch allocates from forebay"]
    done = run_on_oracle(program)
    assert done.returncode == 0, done.stderr
    compile(program + training, "training", "exec")
