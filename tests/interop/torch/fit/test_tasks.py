"""Runs of scripts on emulated cards: their processes, their output, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay._base.verdicts import Verdict
from forebay.interop.torch.fit import tasks
from forebay.interop.torch.fit.tasks import FitTask, run_task

MIB = 1 << 20
LIMIT = 120  # seconds of a run, which takes about five
USE = "import torch; x = torch.ones(4 << 18, device='cuda')"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def run(source, mode="compute"):
        path = tmp_path / "program.py"
        path.write_text(dedent(source))
        return run_task(FitTask("h100", mode, script=(str(path),), folder=str(tmp_path), timeout=LIMIT))

    return run


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
@pytest.mark.parametrize("mode", ["shapes", "compute"])
def test_process_that_a_shell_starts_without_the_emulation_is_named(run, mode):
    source = f"""
        import subprocess, sys
        {USE}
        child = "import torch; torch.ones(3)"
        command = f"env -i {{sys.executable}} -c '{{child}}'; {{sys.executable}} -I -c '{{child}}'"
        subprocess.run(["sh", "-c", command], check=True)
    """
    found = run(source, mode)
    assert found.verdict is Verdict.DID_NOT_FINISH
    assert "-c import torch; torch.ones(3)) and 1 other process used PyTorch without emulated devices" in found.message
    assert found.peak_allocated == 4 * MIB


@pytest.mark.skipif(
    bool(
        subprocess.run([sys.executable, "-I", "-c", "import numpy, rich"], capture_output=True, check=False).returncode
    ),
    reason="NumPy and Rich are found through PYTHONPATH, which isolated processes ignore",
)
def test_isolated_process_counts_and_others_without_pytorch_do_not_matter(run):
    found = run(f"""
        import subprocess, sys
        subprocess.run([sys.executable, "-I", "-c", {USE!r}], check=True, env={{}})
        subprocess.run(["sh", "-c", "env -i sleep 1; env -i " + sys.executable + " -I -c 'import json'"], check=True)
    """)
    assert (found.verdict, found.peak_allocated) == (Verdict.FITS, 4 * MIB), found


def test_end_of_a_long_output_is_kept(run):
    found = run(f"""
        import sys
        {USE}
        for _ in range(100):
            print("x" * (1 << 20))
        print("the reason")
        sys.exit(3)
    """)
    assert found.message == "exit status 3: the reason"


def test_output_of_a_process_that_outlives_the_program_is_waited_for(run):
    found = run(f"""
        import os, subprocess, sys
        {USE}
        child = "import time; time.sleep(1); " + {USE!r} + "; y = torch.ones(8 << 18, device='cuda')"
        subprocess.Popen([sys.executable, "-c", child])
    """)
    assert found.verdict is Verdict.FITS
    assert found.peak_allocated >= 12 * MIB


def test_program_that_closes_its_output_is_waited_for(run):
    found = run(f"""
        import os, time
        os.close(1)
        os.close(2)
        time.sleep(0.5)
        {USE}
    """)
    assert (found.verdict, found.peak_allocated) == (Verdict.FITS, 4 * MIB)


STARTED = """
    import os, subprocess, sys, time
    from pathlib import Path
    source = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(90)"
    for new in (False, True):
        subprocess.Popen([sys.executable, "-c", source, PIDS], start_new_session=new, env={})
    exec(source.replace("sys.argv[1]", repr(PIDS)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their environment in /proc")
@pytest.mark.parametrize("mode", ["shapes", "compute"])
@pytest.mark.parametrize("mechanism", ["auto", "python"])
def test_killed_fit_leaves_no_process_and_no_folder(tmp_path, mode, mechanism):
    temporary, pids = tmp_path / "temporary", tmp_path / "temporary" / "pids"
    temporary.mkdir()
    pids.touch()
    program = tmp_path / "program.py"
    program.write_text(dedent(STARTED).replace("PIDS", repr(str(pids))))
    source = (
        "import sys; from forebay.interop.torch.fit import tasks; "
        f"options = dict(script=({str(program)!r},), folder={str(tmp_path)!r}); "
        "from forebay.rehearsal.supervise import Rehearsal; "
        # The numbers of the processes are written for real.
        f"begin = Rehearsal.__init__; real = [{str(temporary)!r}]; "
        "Rehearsal.__init__ = lambda self, given, **more: begin(self, [*given, *real], **more); "
        f"tasks.run_task(tasks.FitTask('h100', {mode!r}, **options))"
    )
    environment = os.environ | {"TMPDIR": str(temporary), "FOREBAY_REHEARSAL": mechanism}
    with subprocess.Popen([sys.executable, "-c", source], env=environment) as fit:
        found = _wait_until(lambda: len(pids.read_text().split()) == 3 and pids.read_text().split())
        fit.kill()
    _wait_until(lambda: not any(map(_is_running, found)))
    _wait_until(lambda: not list(temporary.glob("forebay-fit-*")))


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until(condition):
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)
    return found


def test_run_that_is_interrupted_kills_the_program(run, monkeypatch, tmp_path):
    def interrupt(process, *_):
        interrupt.pid = process.pid
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("import time; time.sleep(90)")
    with pytest.raises(ProcessLookupError):
        os.killpg(interrupt.pid, signal.SIGCONT)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("jobs", [(), ("--jobs", "1")])
def test_interrupted_fit_ends_with_its_programs(tmp_path, jobs):
    pids, program = tmp_path / "pids", tmp_path / "program.py"
    pids.touch()
    program.write_text(
        f"import os, time\nprint(os.getpid(), file=open({str(pids)!r}, 'a'), flush=True)\ntime.sleep(90)"
    )
    command = [sys.executable, "-m", "forebay", "fit", "--compute", "--cards", "h100,a100", *jobs, str(program)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as fit:
        found = _wait_until(lambda: pids.read_text().split())
        fit.send_signal(signal.SIGINT)
        _, error = fit.communicate(timeout=30)
    assert fit.returncode in (130, -signal.SIGINT), error
    _wait_until(lambda: not any(map(_is_running, pids.read_text().split())))
    assert found
    assert list(tmp_path.glob("forebay-*")) == []
