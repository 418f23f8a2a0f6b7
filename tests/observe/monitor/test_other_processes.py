"""Programs and users of processes, as the system tells them."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

from forebay.observe.monitor.other_processes import other_process


def test_running_process_has_its_program_and_user():
    found = other_process(os.getpid())
    assert found.program.startswith(os.path.basename(sys.executable)[:6])  # noqa: PTH119 -- a text
    assert found.user == pwd.getpwuid(os.getuid()).pw_name


def test_control_characters_of_a_command_line_are_escaped():
    code = "print(flush=True); input()"
    command = [sys.executable, "-c", code, "\x1b[31m"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        found = other_process(process.pid)
        process.stdin.close()
    assert "\x1b" not in found.program
    assert found.program.endswith("[31m")


def test_process_that_has_ended_has_neither():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert other_process(process.pid) == other_process(1 << 30)
    assert (other_process(1 << 30).program, other_process(1 << 30).user) == ("", "")
