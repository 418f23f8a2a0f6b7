"""`forebay run` of programs that are killed: what was recorded until then."""

from __future__ import annotations

import json
import signal

from forebay import snapshot

# A state is written within a tenth of a second where memory grows, unless the machine is busy: wait for it.
KILLED = """
def allocate():
    return np.ones(4 << 20)

def wait(pattern):
    from forebay import snapshot
    from forebay.snapshot.formats.budget import BadSnapshot
    end = time.monotonic() + 50
    while time.monotonic() < end:
        time.sleep(0.05)
        try:
            if any(snapshot.load(path)[0].stats.get("allocated_bytes.all.current", 0) >= 32 << 20
                   for path in glob.glob(pattern)):
                return
        except BadSnapshot:
            pass

kept = allocate()
"""
HEAD = "import glob, os, signal, time\nimport numpy as np\n"


def test_killed_program_leaves_what_was_recorded(runner):
    observed = runner.forebay(f"{HEAD}{KILLED}wait('forebay-report/snapshot.forebay')\nos.kill(os.getpid(), 9)\n")
    assert observed.status == -signal.SIGKILL
    (found,) = snapshot.load(observed.output / "snapshot.forebay")
    assert (found.device, found.stats["allocated_bytes.all.current"]) == ("cpu", 32 << 20)
    assert "allocate" in found.strings
    told = runner.command("-m", "forebay", "explain", "forebay-report/snapshot.forebay")
    assert told.status == 0, told.err
    assert "has written no report: it was killed, or still runs" in told.err
    assert "script.py:5 allocate" in told.out
    again = runner.forebay("1")  # the record is kept
    assert (again.status, runner.folder.joinpath("forebay-report-2/report.html").exists()) == (0, True)


def test_killed_child_leaves_what_was_recorded(runner):
    child = "if not os.fork():\n    kept = [kept, allocate()]\n    wait('forebay-report/process-*/snapshot.forebay')\n"
    observed = runner.forebay(f"{HEAD}{KILLED}{child}    os.kill(os.getpid(), 9)\nos.wait()\n")
    assert observed.status == 0, observed.err
    (process,) = json.loads((observed.output / "summary.json").read_text())["processes"]["unfinished"]
    assert f"; its record is in process-{process['pid']})" in " ".join(observed.err.split())
    (found,) = snapshot.load(observed.output / process["directory"] / "snapshot.forebay")
    assert found.stats["allocated_bytes.all.current"] >= 32 << 20
