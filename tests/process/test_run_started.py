"""Processes that a program under `forebay run` starts anew: their own records, and what is said about the others."""

from __future__ import annotations

import json

WORK = """
import multiprocessing, os, signal, subprocess, sys
import numpy as np

def work(size):
    return float(np.ones(size << 17).sum())

CODE = "import numpy as np; print(np.ones(16 << 17).sum())"
"""
WAYS = """
def run(*words, **options):
    print(subprocess.run([*words], **options).returncode)

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            pool.map(work, [8, 16])
    run(sys.executable, "-I", "-c", CODE, env={})
    run("sh", "-c", sys.executable + ' -c "$0"; true', CODE)
    run(sys.executable, "-c", CODE + "; import os; os._exit(0)")
    run(sys.executable, "-c", CODE + "; import os; os.kill(os.getpid(), 15)")
"""


def summary_of(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_process_has_its_record_however_it_is_started(runner):
    observed = runner.same(f"{WORK}{WAYS}")
    folders = {each.name: summary_of(each) for each in observed.output.glob("process-*")}
    assert [each["devices"][0]["peak"] for each in folders.values()] == [16 << 20] * 6
    assert {each["directory"] for each in folders.values()} == {*folders}
    whole = summary_of(observed.output)
    assert sorted(each["pid"] for each in whole["children"]) == sorted(each["pid"] for each in folders.values())
    assert (whole["processes"]["unfinished"], whole["processes"]["running"]) == ([], [])
    assert "6 child processes" in observed.err
    assert not (observed.output / "processes.log").exists()


NOT_RECORDED = """
os.system("true")
subprocess.run(["true"], check=True)
subprocess.run(["true"], check=True)
subprocess.run([sys.executable, "-c", "1"], check=True)
subprocess.run([sys.executable, "-c", CODE + "; import os; os.kill(os.getpid(), 9)"])
code = "import numpy, sys; print(1, flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid)
os.dup(child.stdin.fileno())  # open until this process ends
"""


def test_what_is_not_recorded_is_counted_and_named(runner):
    observed = runner.forebay(f"{WORK}{NOT_RECORDED}")
    assert observed.status == 0, observed.err
    processes = summary_of(observed.output)["processes"]
    assert [each["command"] for each in processes["not_recorded"]] == ["true", "true"]
    assert [each["pid"] for each in processes["running"]] == [int(observed.out.split()[-1])]
    assert len(processes["unfinished"]) == 1
    assert processes["without_arrays"] == 1
    assert "2 processes of other programs not recorded: true (2 times)." in observed.err
    assert "1 process of Python allocated no array." in observed.err
    assert "1 process ended without a report (killed, or crashed): " in observed.err
    assert "1 process still running, its report follows in process-PID: " in observed.err


def test_environment_and_path_of_a_child_are_those_of_the_program(runner):
    runner.same(
        """
        import subprocess, sys
        code = "import os, sys; print(sorted(os.environ.items()), sys.path, sys.argv, sys.orig_argv)"
        subprocess.run([sys.executable, "-c", code, "1"], check=True)
        """
    )


def test_program_that_replaces_itself_has_two_reports(runner):
    observed = runner.forebay(
        """
        import os, sys
        import numpy as np
        kept = np.ones(1 << 20)
        if sys.argv[1:] != ["again"]:
            os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
        """
    )
    assert observed.status == 0
    assert "a report of its own follows if it imports NumPy" in observed.err
    again = observed.output.with_name("forebay-report-2")
    for output in (observed.output, again):
        assert json.loads((output / "summary.json").read_text())["devices"][0]["peak"] == 8 << 20
        assert not (output / "processes.log").exists()


def test_command_of_forebay_in_a_program_is_no_child(runner):
    observed = runner.forebay(
        """
        import subprocess, sys
        subprocess.run([sys.executable, "-m", "forebay", "run", "--output", "inner", "-c",
                        "import numpy as np; np.ones(1 << 20)"], check=True)
        """
    )
    assert observed.status == 0, observed.err
    assert list(observed.output.glob("process-*")) == []
    assert (runner.folder / "inner/summary.json").exists()
