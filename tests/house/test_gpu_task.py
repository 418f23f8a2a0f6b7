"""`dev.py gpu`, rehearsed on the software driver, and with parts that fail, hang or cannot run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
from runpy import run_path
from textwrap import dedent

import pytest
from support import software_driver
from support.beside import NUMBA, paths_of_sources
from support.oracle_programs import on_oracle, run_on_oracle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

LIMIT = 240  # seconds; the parts take 20 on an idle machine


def run(root, *arguments, variables=None, program=None):
    """Run the task, or a program that may import its modules, on the software driver."""
    paths = [f"{root / folder}" for folder in ("tools", "tests", "src")]
    environment = software_driver.environment(**{"PYTHONPATH": ":".join(paths), **(variables or {})})
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
    parts = ["smoke", "conformance", "scenes", "graphs", "benchmarks"]
    done = run(root, "--quick", "--minutes", "9", "--output", tmp_path, *parts)
    assert done.returncode == 0, done.stdout + done.stderr
    titles = ("Smoke test", "Conformance suite", "Recorded scenes of torch.cuda", "Graphs", "Benchmarks")
    for title in titles:
        assert f"{title} ... ok after" in done.stdout
    page = (tmp_path / "benchmarks-gpu.md").read_text()
    assert "rehearsal on the software driver: nothing was verified on hardware" in page
    assert "| record and query an event | µs |" in page
    assert tomllib.loads((tmp_path / "verified.toml").read_text()) == {}
    found = json.loads((tmp_path / "results.json").read_text())
    assert {name: each["status"] for name, each in found["parts"].items()} == dict.fromkeys(parts, "ok")
    assert "| Smoke test | ok | Software device, " in (tmp_path / "results.md").read_text()
    with tarfile.open(tmp_path / "results.tar.xz") as archive:
        assert {"results.json", "work/parts/smoke/result.json", "work/parts/smoke/log.txt"} <= {*archive.getnames()}
    assert not (tmp_path / "work/local").exists()
    assert tracked_results(root) == before


def test_reason_is_given_without_a_gpu(root, tmp_path):
    done = run(root, "--output", tmp_path, variables={"SOFTCUDA_DEVICES": "0"})
    assert done.returncode == 1
    assert "no GPU to test: cuInit returned 100" in done.stderr


def test_gpu_that_others_use_is_named_in_one_line(root, tmp_path):
    """By nvidia-ml-py with two functions replaced: the software driver has no other users."""
    (tmp_path / "pynvml.py").write_text(
        dedent("""
        import sys
        from importlib.machinery import PathFinder
        from pathlib import Path
        from types import SimpleNamespace as Object
        others = [each for each in sys.path if each != str(Path(__file__).parent)]
        exec(Path(PathFinder.find_spec("pynvml", others).origin).read_text())
        if any("card" in each for each in sys.orig_argv):  # the process that describes the card
            nvmlDeviceGetMemoryInfo = lambda device: Object(used=30 << 30)
            nvmlDeviceGetComputeRunningProcesses = lambda device: [Object(pid=7), Object(pid=8)]
        """)
    )
    variables = {"PYTHONPATH": ":".join([str(tmp_path), *(f"{root / each}" for each in ("tools", "tests", "src"))])}
    done = run(root, "--quick", "--minutes", "9", "--output", tmp_path / "out", "smoke", variables=variables)
    assert done.returncode == 0, done.stderr
    text = "30.00 GiB of the GPU are in use by other programs (processes 7, 8)"
    assert text in done.stdout.splitlines()
    assert json.loads((tmp_path / "out/results.json").read_text())["facts"]["in use"] == text


def test_unknown_part_is_refused(root):
    done = run(root, "speed")
    assert done.returncode == 2
    assert "unknown part 'speed'; known: truth, " in done.stderr


def test_folder_of_others_is_left_alone(root, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "thesis.tex").write_text("mine")
    done = run(root, "--output", tmp_path, "smoke")
    assert done.returncode == 1
    assert "contains 'thesis.tex', which is not of a run" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex", "work"]


def test_missing_tools_are_named_in_one_line(root):
    program = """
    import sys
    sys.modules["Cython"] = sys.modules["pybind11"] = None
    from gpu import building
    building._is_installed = lambda module: module not in ("Cython", "pybind11")
    print(building.missing_tools())
    """
    done = run(root, program=program, variables={"CXX": "absent-compiler -O2"})
    assert done.stdout.strip() == "['the compiler absent-compiler', 'Cython', 'pybind11']", done.stderr


def has_namespaces():
    """Return whether this process may create a network namespace."""
    command = ["unshare", "--user", "--map-root-user", "--net", "true"]
    try:
        return not subprocess.run(command, capture_output=True, timeout=LIMIT, check=False).returncode
    except OSError:
        return False


@pytest.mark.skipif(not has_namespaces(), reason="this system permits no network namespaces")
def test_run_in_place_needs_no_network(root, tmp_path):
    """In a copy of the checkout with the results of a compilation, which has nothing more to do."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(
        ".venv*", ".git", "build", "__pycache__", ".mypy_cache", ".hypothesis", "node_modules"
    )
    shutil.copytree(root, copy, ignore=ignored)
    for path in [*(copy / "src").rglob("*.c"), *(copy / "src").rglob("*.cpp")]:
        path.touch()
    built = copy / f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for path in (copy / "src").rglob("*.so"):
        target = built / path.relative_to(copy / "src")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        os.utime(target, (time.time() + 60,) * 2)
    up = "import fcntl, socket, struct; s = socket.socket(); fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 1))"
    command = (
        f'"{sys.executable}" -c "{up}" && exec "{sys.executable}" dev.py gpu --here --quick --minutes 9 --output out '
    )
    command += "smoke graphs"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "bash", "-c", command],
        cwd=copy,
        env=software_driver.environment(PYTHONPATH="", FOREBAY_VENV=str(tmp_path / "none")),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Compilation of forebay: ok after \d+ s\nSmoke test \.\.\. ok after ", done.stdout), done.stdout
    assert f"rehearsal; written: {copy / 'out'}" in done.stdout
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        ([1.0, 1.0, 1.0], [40.0, 62.3, 108.0]),  # what a stage leaves over is available to the later ones
        ([40.0, 40.0, 30.0], [40.0, 40.0, 30.0]),
    ],
)
def test_limits_share_the_time_that_remains(root, monkeypatch, spent, expected):
    monkeypatch.syspath_prepend(root / "tools")
    from gpu.parts import Part, limit

    stages = [[Part("a", "A", 40)], [Part("b", "B", 10), Part("c", "C", 40)], [Part("d", "D", 30)]]
    left, found = 110.0, []
    for number, stage in enumerate(stages):
        found.append(limit(stage, stages[number + 1 :], left))
        left -= spent[number]
    assert found == pytest.approx(expected, abs=0.1)


def test_table_of_limits_in_the_documentation_is_that_of_the_parts(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "tools")
    from gpu.parts import MINUTES, PARTS, share, stages, table_of_limits

    assert "\n".join(table_of_limits()) in (root / "docs/how-to/cuda.md").read_text()
    assert sum(share(stage) for stage in stages(PARTS)) + 6 <= 60 * MINUTES


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
    import forebay, tempfile
    forebay.__version__ = "2.15.0"
    job = Job(Path(tempfile.mkdtemp()), float("inf"), quick=True)
    same = random_numbers.compare(job)
    print(same.status, same.detail.partition(" are")[0])
    seeds = iter([1, 2] * 1000)
    random_numbers.SIZES, random_numbers.DRAWS = (1000,), random_numbers.DRAWS[:1]
    seed = random_numbers.forebay.manual_seed
    random_numbers.forebay.manual_seed = lambda _: seed(next(seeds))
    other = random_numbers.compare(job)
    print(other.status, len(other.lines))
    print(other.lines[0])
    forebay.__version__ = "2.11.0+cu130"
    other = random_numbers.compare(job)
    print(other.status, other.detail, len(other.lines))
    """)
    done = run(root, program=program)
    assert done.returncode == 0, done.stderr
    first, second, third, older = done.stdout.splitlines()
    assert first == "ok 38 of 38 draws"
    assert second == "failed 4"
    assert older == (
        "ok 0 of 4 draws are equal, bit for bit; the differences are beside PyTorch 2.11.0+cu130, while forebay "
        "follows 2.15 4"
    )
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
    import tempfile
    from gpu import graphs
    from gpu.part import Job
    from pathlib import Path
    calls = []
    def counted(tensors):
        calls.append(1)
        tensors["a"].fill_(float(len(calls)))  # captured once, but executed with other values at once
    graphs.WORK = {"counted": counted}
    outcome = graphs.compare(Job(Path(tempfile.mkdtemp()), float("inf"), quick=True))
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
    from gpu.shared_allocators import problem_of
    print(problem_of("pass") or "ok", problem_of("assert 1 == 2, 'not counted'"))
    print(problem_of("import time; time.sleep(60)", 0.5))
    """
    done = run(root, program=program)
    assert done.stdout.splitlines() == [
        "ok ended with 1: AssertionError: not counted",
        "it did not end within 0.5 s",
    ], done.stderr


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
