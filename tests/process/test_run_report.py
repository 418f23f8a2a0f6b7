"""Output of `forebay run`: tables, snapshot and HTML page, and errors in writing them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

ALLOCATES = """
    import numpy as np
    def hold():
        return np.ones(4 << 20, np.uint8)
    def burn():
        for _ in range(100):
            np.ones(1 << 20, np.uint8)
    kept = hold()
    burn()
    print("out")
"""


def test_tables_and_files_are_written(runner):
    observed = runner.forebay(ALLOCATES)
    assert (observed.status, observed.out) == (0, "out\n")
    for words in ("peak", "5.00 MiB", "4.00 MiB", "reserved", "allocations/s", "script.py:4 hold", "script.py:7 burn"):
        assert words in observed.err
    for name in ("snapshot.forebay", "report.html"):
        assert str(observed.output / name) in observed.err.splitlines()[-1 if name == "report.html" else -2]
    assert "\x1b" not in observed.err
    assert sorted(path.name for path in observed.output.iterdir()) == [
        "report.html",
        "snapshot.forebay",
        "summary.json",
    ]
    assert "</html>" in (observed.output / "report.html").read_text()
    snapshot = observed.snapshot
    assert len(snapshot.trace) >= 202
    assert snapshot.notes["program"] == ["script.py"]
    assert snapshot.lost == 0


def test_exit_handlers_and_threads_are_recorded(runner):
    observed = runner.forebay(
        """
        import atexit, threading
        import numpy as np
        def in_thread():
            threading.main_thread().join()
            return np.ones(1 << 20)
        @atexit.register
        def in_handler():
            return np.ones(1 << 20)
        threading.Thread(target=in_thread).start()
        """
    )
    assert "in_handler" in observed.snapshot.strings
    assert "in_thread" in observed.snapshot.strings


def test_arrays_of_the_report_are_not_recorded(runner):
    observed = runner.forebay(ALLOCATES)
    assert not [
        text for text in observed.snapshot.strings if text.endswith(("run_report.py", "run_session.py", "native.py"))
    ]


def test_without_history_totals_and_segments_are_reported(runner):
    observed = runner.forebay(ALLOCATES, options=("--no-history",))
    assert "5.00 MiB" in observed.err
    assert "101" in observed.err
    assert "hold" not in observed.err
    assert len(observed.snapshot.trace) == 0
    assert len(observed.snapshot.segments) > 0
    assert (observed.output / "report.html").exists()


def test_short_history_counts_lost_entries(runner):
    observed = runner.forebay(ALLOCATES, options=("--entries", "50"))
    assert len(observed.snapshot.trace) == 50
    assert observed.snapshot.lost > 100


OUT_OF_MEMORY = """
    import numpy as np
    kept = [np.ones(3 << 20, np.uint8)]
    try:
        np.ones(1 << 30, np.uint8)
    except MemoryError as error:
        print(type(error).__mro__)
    while True:
        kept.append(np.ones(3 << 20, np.uint8))
"""


def test_out_of_memory_is_explained_and_reported(runner):
    observed = runner.forebay(OUT_OF_MEMORY, options=("--memory", "64MiB"))
    assert observed.status == 1
    assert "forebay.OutOfMemory" in observed.out
    for words in ("OutOfMemory", "3.00 MiB", "64.00 MiB", "Arrays and tensors hold", "script.py:9"):
        assert words in observed.own
    assert "src/forebay/" not in observed.own.split("OutOfMemory")[0].replace("forebay.interop", "")
    assert "ran out of memory" in observed.err
    assert observed.snapshot.capacity == 64 << 20


def test_caught_memory_error_does_not_end_program(runner):
    observed = runner.forebay(
        """
        import numpy as np
        try:
            np.ones(1 << 30)
        except MemoryError:
            print(np.ones(1000).sum())
        """,
        options=("--memory=32MiB",),
    )
    assert (observed.status, observed.out) == (0, "1000.0\n")


def test_other_files_in_output_are_kept(runner):
    output = runner.folder / "deep" / "er"
    output.mkdir(parents=True)
    for name in ("report.html", "snapshot.forebay", "mine.txt"):
        (output / name).write_text("old")
    runner.forebay("print(1)", options=("--output", "deep/er", "--overwrite"))
    assert (output / "mine.txt").read_text() == "old"
    assert (output / "report.html").read_text() != "old"
    assert len([*output.iterdir()]) == 4


@pytest.mark.parametrize("option", [(), ("--output", "there/it/is")])
def test_earlier_report_is_kept(runner, option):
    first = runner.forebay("print(1)", options=option)
    folder = runner.folder / (option[-1] if option else "forebay-report")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for number in (2, 3):
        again = runner.forebay(ALLOCATES, options=option)
        assert f"{folder}-{number}/report.html" in again.err.replace("there/it/../", "")
    assert str(folder / "report.html") in first.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_report_of_another_run_meanwhile_is_kept(runner):
    observed = runner.forebay("import pathlib; pathlib.Path('forebay-report/report.html').write_text('other')")
    assert (observed.output / "report.html").read_text() == "other"
    assert (runner.folder / "forebay-report-2/report.html").exists()


def test_summary_is_printed_as_json_and_written(runner):
    observed = runner.forebay(ALLOCATES, options=("--json",))
    (line,) = observed.err.splitlines()
    summary = json.loads(line)
    (device,) = summary["devices"]
    assert (device["device"], device["capacity"], device["allocations"]) == ("cpu", None, 101)
    assert [site["site"].split("/")[-1] for site in device["sites_at_peak"]] == ["script.py:4 hold", "script.py:7 burn"]
    assert summary["resident_peak_bytes"] > 5 << 20
    assert json.loads((observed.output / "summary.json").read_text()) == summary


def test_progress_is_printed_while_the_program_runs(runner):
    source = """
        import time
        import forebay.commands.run_progress
        import numpy as np
        kept = np.ones(4 << 20, np.uint8)
        time.sleep(0.5)
    """
    runner.write("import forebay.commands.run_progress as line\nline.FILE_SECONDS = 0.05", "sitecustomize.py")
    paths = os.pathsep.join(filter(None, [str(runner.folder), os.environ.get("PYTHONPATH")]))
    observed = runner.forebay(source, options=("--progress",), env={**os.environ, "PYTHONPATH": paths})
    line = r"^forebay: 0:0\d, allocated 4.00 MiB, peak 4.00 MiB, resident [\d.]+ MiB$"
    assert len(re.findall(line, observed.err, re.MULTILINE)) >= 2
    assert "forebay: 0:0" not in observed.err.split("Memory of cpu")[1]


def test_quiet_run_prints_nothing_and_writes_the_files(runner):
    observed = runner.forebay(ALLOCATES, options=("--quiet",))
    assert (observed.out, observed.err) == ("out\n", "")
    assert (observed.output / "report.html").exists()


@pytest.mark.parametrize("output", ["file", "file/below", "/proc/forebay", "/dev/null", "folder", "nul\\0l"])
def test_unwritable_output_is_reported_before_program_starts(runner, output):
    runner.write("", "file")
    runner.write("", "folder/report.html/in-the-way")
    if "\\0" in output:
        output = "x" * 5000
    observed = runner.forebay("open('started', 'w')", options=("--output", output))
    assert (observed.status, observed.out) == (2, "")
    assert observed.err.startswith("forebay: error: cannot write ")
    assert observed.err.count("\n") == 1
    assert not (runner.folder / "started").exists()


def test_program_may_change_and_remove_working_directory(runner):
    observed = runner.forebay(
        "import os, shutil; os.mkdir('x'); os.chdir('x'); shutil.rmtree(os.path.dirname(os.getcwd())); print(1)"
    )
    assert (observed.status, observed.out) == (0, "1\n")
    assert "Traceback" not in observed.err
    assert (observed.output / "report.html").exists()


def test_missing_working_directory_is_reported(runner):
    (runner.folder / "gone").mkdir()
    script = runner.write("print(1)")
    code = "import os, subprocess, sys; os.chdir('gone'); os.rmdir('../gone'); sys.exit(subprocess.call(sys.argv[1:]))"
    observed = runner.command("-c", code, sys.executable, "-m", "forebay", "run", str(script))
    assert observed.status == 2
    assert observed.err.startswith("forebay: error: cannot resolve ")
    assert observed.err.count("\n") == 1


def test_full_disk_is_reported_and_keeps_exit_status(runner):
    observed = runner.forebay("import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)); sys.exit(6)")
    assert observed.status == 6
    for name in ("snapshot.forebay", "report.html"):
        (line,) = (line for line in observed.err.splitlines() if "error" in line and name in line)
        assert line.startswith("forebay: error: cannot write ")
    assert [*observed.output.iterdir()] == []


def test_report_works_with_changed_interpreter_settings(runner):
    observed = runner.forebay(
        """
        import gc, os, sys
        import numpy as np
        np.seterr(all="raise")
        os.umask(0o77)
        gc.disable()
        sys.path.clear()
        sys.setrecursionlimit(60)
        """
    )
    assert "error" not in observed.err
    assert (observed.output / "report.html").exists()


def test_open_option_starts_browser(runner):
    browser = runner.write('#!/bin/sh\necho "$1" > shown', "browser")
    browser.chmod(0o755)
    observed = runner.forebay("", options=("--open",), env={**os.environ, "BROWSER": f"{browser} %s"})
    shown = runner.folder / "shown"
    if "no browser could be started" not in observed.err:  # newer Pythons cannot start processes during shutdown
        assert shown.read_text().strip() == (observed.output / "report.html").as_uri()


def test_ascii_terminal_gets_ascii_output(runner):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    observed = runner.forebay(ALLOCATES, env=environment)
    assert "5.00 MiB" in observed.err
    assert observed.err.isascii()


def test_terminal_gets_colour_and_progress_bar(runner):
    runner.write(ALLOCATES)
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "forebay", "run", "script.py"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(command, cwd=runner.folder, env=environment, stdout=subprocess.PIPE, stderr=slave) as child:
        os.close(slave)
        output = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # Linux: the other end is closed
                break
            output += chunk
        assert child.stdout.read() == b"out\n"
    os.close(master)
    assert child.returncode == 0
    for words in ("\x1b[1m", "writing the snapshot", "rendering the report", "script.py:4 hold"):
        assert words in output.decode()


def test_report_of_program_that_used_up_its_descriptors(runner):
    observed = runner.forebay(
        """
        import os, resource, numpy
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        a, kept = numpy.ones(100_000), []
        try:
            while True:
                kept.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            print("no more")
        """
    )
    assert observed.out == "no more\n"
    assert sorted(file.name for file in observed.output.iterdir()) == [
        "report.html",
        "snapshot.forebay",
        "summary.json",
    ]


def test_file_name_of_megabytes_does_not_enlarge_the_report(runner):
    observed = runner.forebay(
        """
        import numpy
        names = {"numpy": numpy}
        exec(compile("def f(n): return numpy.ones(n)", "/x/" + "a" * 10_000_000 + ".py", "exec"), names)
        kept = [names["f"](20_000 + i) for i in range(5)]
        """
    )
    assert (observed.output / "report.html").stat().st_size < 1 << 20
    assert len(observed.err) < 1 << 16
