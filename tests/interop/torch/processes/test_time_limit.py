"""The limit of seconds of a program."""

from __future__ import annotations

import subprocess
import sys
import time
from threading import Event

from support.beside import paths_of_sources

from forebay._base.verdicts import How
from forebay.interop.torch.processes import time_limit


def test_line_of_the_main_thread_is_recorded():
    lines, noted = [], Event()

    def note(line):
        lines.append(line)
        noted.set()

    # In one line, as the thread may look before this one waits.
    assert [time_limit.watch(time.monotonic(), note), noted.wait(20)][1]
    assert "noted.wait(20)][1]" in lines[0]
    assert __file__ in lines[0]


def test_ending_names_the_limit():
    ending = time_limit.ending_at(2.5, "train.py:3")
    assert (ending.how, ending.what, ending.line) == (
        How.TIME_LIMIT, "the run took longer than 2.5 s", "train.py:3",
    )  # fmt: skip


PROGRAM = """
import time
from forebay.interop.torch.processes import time_limit
time_limit._GRACE = 1.0
time_limit.watch(time.monotonic() + 0.2, print, ends_program=True)
try:
    while True:
        try:
            time.sleep(0.01)
        except {caught}:
            print("caught", flush=True)
finally:
    print("closed", flush=True)
"""


def run(caught):
    command = [sys.executable, "-c", PROGRAM.format(caught=caught)]
    environment = {"PYTHONPATH": paths_of_sources()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_program_ends_as_after_an_exit():
    done = run("Exception")
    assert (done.returncode, done.stdout.split(), done.stderr) == (time_limit.STATUS, ["closed"], "")


def test_program_that_catches_everything_ends_too():
    done = run("BaseException")
    assert (done.returncode, done.stdout.split()) == (time_limit.STATUS, ["caught"])
