"""Soak test: random programs on the allocator and on its model, comparing all results and often the whole state.

`python benchmarks/bench_soak.py [OPERATIONS] [SEED]`: 300,000 operations from seed 0 by default. At the first
difference the program prints a minimised sequence of operations and exits with status 1.
"""

from __future__ import annotations

import sys
import time

from measure import console, show, table
from support import random_programs, side_by_side
from support.side_by_side import Different, Operation

from forebay.runtime.allocator import oom_message

STEPS, EVERY = 1000, 50
OPERATIONS = 300_000


def difference(total: int, settings: str, program: list[Operation], every: int = 1) -> str:
    """Run the program on both; return the first difference, or ""."""
    try:
        side_by_side.run(total, settings, program, every=every)
    except Different as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- an error of the allocator counts as a difference
        return f"{type(error).__name__}: {error}"
    return ""


def shortened(total: int, settings: str, program: list[Operation]) -> list[Operation]:
    """Minimise a differing program. Removed operations become (), as operations refer to each other by position."""
    chunk = len(program) // 2
    while chunk:
        for at in range(0, len(program), chunk):
            shorter = [() if at <= place < at + chunk else operation for place, operation in enumerate(program)]
            found = difference(total, settings, shorter) if shorter != program else ""
            if found and "ValueError" not in found:  # invalid: the program depends on a removed setting
                program = shorter
        chunk //= 2
    return program


def main() -> int:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else OPERATIONS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    oom_message.ADVISERS.clear()  # advisers replay the whole program
    start, done = time.perf_counter(), 0
    while done < operations:
        total, settings, program = random_programs.program(seed, STEPS)
        if found := difference(total, settings, program, EVERY):
            console.print(f"program({seed}, {STEPS}) on {total >> 20} MiB, {settings!r}: {found}", markup=False)
            for place, operation in enumerate(shortened(total, settings, program)):
                if operation:
                    console.print(f"  {place}: {operation}", markup=False)
            return 1
        done, seed = done + len(program), seed + 1
    seconds = time.perf_counter() - start
    result = table(f"{done:,} operations on the allocator and its model, no difference", "", "")
    result.add_row("seconds", f"{seconds:.0f}")
    result.add_row("µs per operation, both and their comparison", f"{seconds / done * 1e6:.1f}")
    show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
