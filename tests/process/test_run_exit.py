"""`forebay run` with Ctrl-C, fork and closed pipes: which process reports, and the exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
    import atexit, signal
    atexit.register(print, "handler")
    def f(): signal.raise_signal(signal.SIGINT)
    f()
"""


def test_ctrl_c_ends_with_traceback_and_report(runner):
    observed = runner.same(INTERRUPTED)
    assert observed.status == -signal.SIGINT
    assert observed.output.joinpath("report.html").exists()


def test_ctrl_c_in_a_module_ends_with_traceback_and_report(runner):
    runner.write(INTERRUPTED, "module.py")
    observed = runner.command("-m", "forebay", "run", "-m", "module")
    assert (observed.status, observed.out) == (-signal.SIGINT, "handler\n")
    assert observed.own.count("File ") == 2


def test_ctrl_c_handled_by_program(runner):
    runner.same(
        """
        import signal, sys
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("handled")
            sys.exit(4)
        """
    )


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(5)", "1/0"])
def test_ctrl_c_during_report(runner, ending):
    source = f"""
        import signal
        import forebay.snapshot.report.html
        def write_several(snapshots, out, names=(), programs=()):
            out.write("half")
            signal.raise_signal(signal.SIGINT)
        forebay.snapshot.report.html.write_several = write_several
        {ending}
    """
    observed = runner.forebay(source)
    assert observed.status == runner.python(source).status
    assert "Traceback" not in observed.err.split("Memory of")[1]
    assert "forebay: interrupted before the report was finished\n" in observed.err
    assert sorted(path.name for path in observed.output.iterdir()) == ["snapshot.forebay", "summary.json"]


FORKS = """
    import os, sys
    import numpy as np
    kept = np.ones(1_000_000)
    child = os.fork()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else None
    print(float((kept + np.ones(1_000_000)).sum()), status, flush=True)
    sys.exit(None if child else 3)
"""


def test_forked_child_computes_and_prints_no_tables(runner):
    observed = runner.same(FORKS)
    assert observed.out.split() == ["2000000.0", "None", "2000000.0", "3"]
    assert observed.err.count("Memory of cpu") == 1


def test_daemon_does_not_keep_standard_error_open(runner):
    """Otherwise a reader of standard error would wait for the daemon."""
    observed = runner.forebay(
        """
        import os, time
        if not os.fork():
            os.setsid()
            for fd in (0, 1, 2):
                os.close(fd)
            open("pid", "w").write(str(os.getpid()))
            time.sleep(600)
        while not os.path.exists("pid") or not open("pid").read():
            time.sleep(0.01)
        """
    )
    os.kill(int((runner.folder / "pid").read_text()), signal.SIGKILL)
    assert "Memory of cpu" in observed.err


PRINTS = "for n in range(100_000): print('line', n)"


def read_one_line(runner, *arguments: str, merged: bool = False) -> tuple[int, str]:
    """Run the command like `... | head -1`. Returns the exit status and standard error."""
    runner.write(PRINTS)
    command = [sys.executable, *arguments]
    err = subprocess.STDOUT if merged else subprocess.PIPE
    with subprocess.Popen(command, cwd=runner.folder, stdout=subprocess.PIPE, stderr=err, encoding="utf-8") as process:
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()
        errors = "" if merged else process.stderr.read()
        return process.wait(60), errors


def test_closed_pipe_fails_as_under_python(runner):
    status, errors = read_one_line(runner, "script.py")
    observed = read_one_line(runner, "-m", "forebay", "run", "script.py")
    assert (observed[0], observed[1].split("\nResident memory")[0]) == (status, errors)
    assert "forebay/commands" not in observed[1]


def test_closed_pipe_of_both_streams_ends_silently(runner):
    status, _ = read_one_line(runner, "script.py", merged=True)
    assert read_one_line(runner, "-m", "forebay", "run", "script.py", merged=True)[0] == status
    assert (runner.folder / "forebay-report/report.html").exists()


def test_closed_standard_error_does_not_affect_the_program(runner):
    runner.write("print(1)")
    command = '"$0" -m forebay run script.py 2>&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], cwd=runner.folder, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert (runner.folder / "forebay-report/report.html").exists()
