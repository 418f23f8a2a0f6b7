"""The CUDA backend on the software driver of tests/softcuda: its calls beside the same calls through cuda-bindings.

The software driver has no device, so that the figures are the cost of the calls themselves. The figures are processor
time of the calling thread: with the device's context current, and with the context of another device, which forebay,
as any caller, has to replace for the call.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from measure import REPETITIONS, show, table

HERE = Path(__file__).parent
ADDED = 1_500  # nanoseconds that the backend may add to a call


def output(*arguments: str) -> Any:
    """Return what a program prints in a process that finds the software driver."""
    from support import software_driver

    command = [sys.executable, str(HERE / "driver_programs.py"), *arguments]
    environment = software_driver.environment()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment, timeout=300)
    return json.loads(done.stdout)


def show_calls() -> list[str]:
    """Show the costs of calls; return those that cost more than permitted."""
    result = table(
        f"Nanoseconds per call, medians of {REPETITIONS}",
        *("call", "cuda-bindings", "forebay", "ratio", "added", "added, other context", "bound"),
    )
    costly = []
    for name, figures in output("calls").items():
        raw, ours = figures["raw"], figures["ours"]
        other = figures["of another device, ours"] - figures["of another device, raw"]
        added = f"{ours - raw:+,.0f}", f"{other:+,.0f}", f"≤ {ADDED:,}"
        result.add_row(name, f"{raw:,.0f}", f"{ours:,.0f}", f"{ours / raw:.2f}", *added)
        costly += [f"{name}: more than {ADDED:,} ns added"] if max(ours - raw, other) > ADDED else []
    show(result)
    return costly


def show_pairs() -> list[str]:
    """Show the cost of allocations from the cache; return what is not as required."""
    sides = ("emulated", "cuda")
    runs = [{side: output("pair", side) for side in sides} for _ in range(REPETITIONS)]
    result = table(
        f"Nanoseconds for an allocation of 1 KiB from the cache and its free, medians of {REPETITIONS} fresh processes",
        *("pair", "emulated device", "CUDA backend", "ratio", "bound"),
    )
    for how in ("by address", "by object"):
        emulated, cuda = (median(run[side][how] for run in runs) for side in sides)
        result.add_row(how, f"{emulated:,.0f}", f"{cuda:,.0f}", f"{cuda / emulated:.2f}", "about 1")
    made = max(int(run["cuda"]["driver calls"]) for run in runs)
    result.add_row("driver calls in 2,000 pairs", "", str(made), "", "0")
    show(result)
    return [f"{made} driver calls in 2,000 allocations from the cache"] if made else []


def main() -> int:
    sys.path.append(str(HERE.parent / "tests"))
    problems = [*show_calls(), *show_pairs()]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
