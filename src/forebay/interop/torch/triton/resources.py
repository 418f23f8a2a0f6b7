"""Registers and stack of the machine code of a kernel, as NVIDIA's tool beside Triton's assembler tells them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

__all__ = ["Resources", "resources"]

_LINE = re.compile(r"REG:(\d+)\s+STACK:(\d+)")
_MOST_SECONDS = 30


class Resources(NamedTuple):
    """The registers and the memory of a thread.

    Attributes
    ----------
    registers : int
        Registers.
    spilled : int
        Bytes of the stack, to which registers are spilled.
    """

    registers: int
    spilled: int


@lru_cache(maxsize=256)
def resources(code: bytes) -> Resources | None:
    """Return what machine code takes; None if it cannot be read."""
    tool = Path(import_module("triton").__file__ or "").parent / "backends/nvidia/bin/cuobjdump"
    if not code or not tool.exists():
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "-res-usage", file.name], capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    found = _LINE.search(done.stdout + done.stderr)
    return Resources(int(found[1]), int(found[2])) if found is not None else None
