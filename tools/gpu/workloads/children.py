"""Functions of the processes of a measurement: each writes its results to a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gpu.part import write_json
from gpu.workloads.nvml_memory import UsedMemory
from gpu.workloads.workload import Setting

__all__ = ["describe_card", "hold_card", "measure_outside", "run_workload"]


def hold_card() -> None:
    """Keep the card open: without a process that does, and without persistence mode, each first use waits for it."""
    memory = UsedMemory()
    while not memory.problem:
        time.sleep(60.0)


def describe_card(path: Path) -> None:
    """Write what is known about the card and the software; the card is empty without a GPU."""
    from gpu.workloads.card_facts import card_facts, has_gpu, versions

    write_json(path, {"card": card_facts(), "hardware": has_gpu(), "versions": versions()})


def measure_outside(path: Path, *, quick: bool) -> None:
    """Write the memory outside the allocator, after each step."""
    from gpu.workloads.outside import measure

    for steps in measure(quick=quick):
        write_json(path, steps)


def run_workload(path: Path, name: str, setting: Setting) -> None:
    """Run a workload and write what was measured, or the error."""
    from gpu.workloads import all_workloads
    from gpu.workloads.recording import record
    from gpu.workloads.workload import WORKLOADS

    all_workloads.load()
    memory = UsedMemory() if setting.device == "cuda" else None
    before = memory.read() if memory else {}
    try:
        found: dict[str, Any] = record(WORKLOADS[name], setting)
    except Exception as error:
        write_json(path, {"problem": f"{type(error).__name__}: {error}".partition("\n")[0][:500]})
        raise
    if memory:
        found["outside"] = _outside(before["device"], memory.read()["device"], found)
    write_json(path, found)


def _outside(before: int | None, after: int | None, found: dict[str, Any]) -> int | None:
    """Return the bytes that the process uses beyond its segments, at the end of the last step."""
    if before is None or after is None:
        return None
    return int(after - before - found["phases"][-1]["reserved"])
