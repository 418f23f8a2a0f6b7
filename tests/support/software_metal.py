"""The stand-in of tests/softmetal in place of PyObjC's modules, in this process or in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softmetal.control import Control, control

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ROOT / "tests/softmetal/frameworks"
MODULES = ("Metal", "objc", "Foundation")
_TIMEOUT = 300  # seconds


@contextmanager
def installed(machine: str = "m1-8gib", **changes: object) -> Iterator[Control]:
    """Let `import Metal` find the stand-in inside a with statement, and check at its end that no rule was broken."""
    hidden = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(FRAMEWORKS))
    control.reset()
    control.use(machine, **changes)
    try:
        yield control
        control.release()
        control.wait_until_idle()  # a late handler would not find the modules
        control.check()
    finally:
        control.reset()
        sys.path.remove(str(FRAMEWORKS))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def environment(machine: str = "m1-8gib", **variables: str) -> dict[str, str]:
    """Return the environment of a child process that finds the stand-in."""
    path = os.pathsep.join([str(FRAMEWORKS), str(ROOT / "tests"), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "SOFTMETAL_MACHINE": machine, **variables}


def run(program: str, machine: str = "m1-8gib", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a child process with the stand-in."""
    command = [sys.executable, "-c", program]
    env = environment(machine, **variables)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False)


def lines_of(program: str, machine: str = "m1-8gib", **variables: str) -> list[str]:
    """Return the lines that a program prints, which must succeed and break no rule."""
    checked = f"{program}\nfrom softmetal.control import control\ncontrol.check()\n"
    done = run(checked, machine, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
