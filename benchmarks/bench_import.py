"""Time of `import forebay` after NumPy is imported, in fresh processes."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from measure import show, table

ROUNDS = 15
PROBE = "import time, numpy; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def milliseconds(statement: str) -> float:
    times = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", PROBE.format(statement)], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout) * 1000)
    return median(times)


def main() -> None:
    result = table("Imports, milliseconds after `import numpy`", "statement", "ms", "bound")
    result.add_row("pass", f"{milliseconds('pass'):.1f}", "")
    result.add_row("import forebay", f"{milliseconds('import forebay'):.1f}", "≤ 100")
    result.add_row("import forebay, open the CPU device", f"{milliseconds('import forebay; forebay.empty(1)'):.1f}", "")
    show(result)


if __name__ == "__main__":
    main()
