"""The entry point of the `forebay` command."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import builtins, signal, sys
real = builtins.__import__
def interrupted(name, *rest, **more):
    if name == {module!r}:
        builtins.__import__ = real
        signal.raise_signal(signal.SIGINT)
    return real(name, *rest, **more)
builtins.__import__ = interrupted
sys.argv = ["forebay", "run", "-c", "print('started')"]
import forebay_command
sys.exit(forebay_command.main())
"""


@pytest.mark.parametrize("module", ["numpy", "forebay.commands", "rich", "forebay.interop"])
def test_ctrl_c_while_importing_ends_without_a_traceback(tmp_path, module):
    command = [sys.executable, "-c", INTERRUPTED.format(module=module)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    if "started" in done.stdout:  # it is imported for the report
        assert "Traceback" not in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
