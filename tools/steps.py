"""Steps of the tasks in this folder: run a command and show its output if it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]


def call(what: str, command: list[str], folder: Path | str = ROOT, **variables: str) -> str:
    """Run a command of a task; return its output, or print it and end if the command fails."""
    print(f"{what} ...", flush=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_variables() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        fail(f"{what} failed ({' '.join(command)}):\n{done.stdout}")
    return done.stdout


def output(command: list[str]) -> str:
    """Return what a command prints to its standard output."""
    return subprocess.run(command, env=clean_variables(), capture_output=True, text=True, check=True).stdout


def clean_variables() -> dict[str, str]:
    """Return the environment without what leads back to the checkout."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "FOREBAY_VENV", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def empty_environment(folder: Path) -> str:
    """Create an environment that contains only pip, and return its interpreter."""
    call("empty environment", [sys.executable, "-m", "venv", str(folder)])
    return str(folder / "bin/python")


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def fail(message: str) -> NoReturn:
    sys.exit(f"dev.py: {message}")
