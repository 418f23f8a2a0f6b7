"""A soak: random programs on the allocator and on its plain model, every result compared, statistics and blocks often.

`python benchmarks/bench_soak.py [OPERATIONS] [SEED]`: 300,000 operations from seed 0, if no more is said. When the two
differ it ends with exit status 1, and with a program that is as short as it could make it.
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
    """What went wrong; nothing, as a rule."""
    try:
        side_by_side.run(total, settings, program, every=every)
    except Different as told:
        return str(told)
    except Exception as error:  # noqa: BLE001 -- the allocator broke down, which is as bad
        return f"{type(error).__name__}: {error}"
    return ""


def shortened(total: int, settings: str, program: list[Operation]) -> list[Operation]:
    """As few operations as still make a difference; the others are empty, as operations are named by their places."""
    chunk = len(program) // 2
    while chunk:
        for at in range(0, len(program), chunk):
            shorter = [() if at <= place < at + chunk else operation for place, operation in enumerate(program)]
            told = difference(total, settings, shorter) if shorter != program else ""
            if told and "ValueError" not in told:  # settings that lean on others which went
                program = shorter
        chunk //= 2
    return program


def main() -> int:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else OPERATIONS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    oom_message.ADVISERS.clear()  # what would have helped is found by replays of whole programs
    start, done = time.perf_counter(), 0
    while done < operations:
        total, settings, program = random_programs.program(seed, STEPS)
        if told := difference(total, settings, program, EVERY):
            console.print(f"program({seed}, {STEPS}) on {total >> 20} MiB, {settings!r}: {told}", markup=False)
            for place, operation in enumerate(shortened(total, settings, program)):
                if operation:
                    console.print(f"  {place}: {operation}", markup=False)
            return 1
        done, seed = done + len(program), seed + 1
    seconds = time.perf_counter() - start
    made = table(f"{done:,} operations on the allocator and its model, no difference", "", "")
    made.add_row("seconds", f"{seconds:.0f}")
    made.add_row("µs each, both and their comparison", f"{seconds / done * 1e6:.1f}")
    show(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
