"""Child processes in which tests/softmetal is a Mac: of pytest, and of programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support import software_metal

HERE = Path(__file__).parents[1] / "backends/metal/processes"
LIMIT = 300  # seconds


def environment(machine: str = "m1-8gib", **variables: str) -> dict[str, str]:
    """Return the environment of a child process in which the stand-in is found."""
    found = software_metal.environment(machine, **variables)
    return {**found, "PYTHONPATH": os.pathsep.join([str(HERE / "in_children"), found["PYTHONPATH"]])}


def run(program: str, machine: str = "m1-8gib", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a child process."""
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    env = environment(machine, **variables)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)


def output_of(program: str, machine: str = "m1-8gib", **variables: str) -> str:
    """Return what a program prints, which must succeed, without a warning, and break no rule of Metal."""
    checked = f"{program}\nfrom softmetal.control import control\ncontrol.check()\n"
    done = run(checked, machine, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def run_pytest(*arguments: str, cwd: Path, plugin: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a child process."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60"]
    env = environment(**variables)
    if plugin:
        command += ["-p", "on_stand_in"]
        env["PYTHONPATH"] = os.pathsep.join([str(HERE), env["PYTHONPATH"]])
    command += arguments
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)


def outcomes(output: str) -> dict[str, set[str]]:
    """Return the tests with each outcome, of a run with `-rA`."""
    found: dict[str, set[str]] = {"PASSED": set(), "FAILED": set(), "ERROR": set()}
    lines = r"^(PASSED|FAILED|ERROR) (tests/\S+?(?:\[.*?\])?)(?: - .*)?$"
    for outcome, name in re.findall(lines, output, re.MULTILINE):
        found[outcome].add(name)
    return found
