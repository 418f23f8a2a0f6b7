"""A rehearsal of a run on a machine without a GPU, on the software driver of tests/softcuda."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Impossible", "has_device_nodes", "with_software_driver"]

LIMIT = 300  # seconds for its compilation
_BUILD = "import json; from support import software_driver; print(json.dumps(str(software_driver.build())))"


class Impossible(Exception):
    """The software driver cannot be used here; the text is the reason."""


def has_device_nodes() -> bool:
    """Return True if the machine has a GPU of NVIDIA, whose driver then must work: a rehearsal would hide its fault."""
    return any(Path("/dev").glob("nvidia*"))


def with_software_driver(variables: Mapping[str, str]) -> dict[str, str]:
    """Compile the software driver, unless that was done before, and return variables with which it is found.

    Raises
    ------
    Impossible
        If NVIDIA's headers or the compiler are missing.
    """
    command = [sys.executable, "-c", _BUILD]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise Impossible(f"it was not compiled within {LIMIT} s") from None
    if done.returncode:
        raise Impossible((done.stderr.strip().splitlines() or ["no output"])[-1])
    found = [json.loads(done.stdout.strip().splitlines()[-1]), variables.get("LD_LIBRARY_PATH", "")]
    return {**variables, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, found))}
