"""Time of `import forebay` beside that of `import numpy`, in fresh processes, and the modules that take most of it.

Bytecode is cached, as pip and the first import do it, also if PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from statistics import median

from measure import in_turns, show, table

ROUNDS = 15
BOUND = 100  # ms
SLOWEST = 10
STATEMENTS = ("import numpy", "import numpy, forebay", "import numpy, forebay; forebay.empty(1)")
COUNT = "import sys, numpy; before = {*sys.modules}; import forebay; print(*({*sys.modules} - before))"


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def milliseconds(statement: str) -> float:
    """Return the processor time of a process, which depends less on other load than the time that passes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(["-c", statement])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def slowest(modules: set[str]) -> list[tuple[float, str]]:
    """Return the modules with the longest imports of their own, by `python -X importtime`."""
    times = []
    for line in run(["-X", "importtime", "-c", STATEMENTS[1]]).stderr.splitlines():
        own, _, name = line.removeprefix("import time:").split("|")
        if name.strip() in modules:
            times.append((int(own) / 1000, name.strip()))
    return sorted(times, reverse=True)[:SLOWEST]


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        run(["-c", STATEMENTS[-1]])
        rounds = in_turns(
            *((lambda statement=statement: milliseconds(statement)) for statement in STATEMENTS), repetitions=ROUNDS
        )
        modules = set(run(["-c", COUNT]).stdout.split())
        own = slowest(modules)
    result = table("Imports, milliseconds of processor time", "statements", "ms", "beyond NumPy", "bound")
    for at, statement in enumerate(STATEMENTS):
        beyond = f"{median(times[at] - times[0] for times in rounds):.0f}" if at else ""
        bound = f"≤ {BOUND}" if at == 1 else ""
        result.add_row(statement, f"{median(times[at] for times in rounds):.0f}", beyond, bound)
    show(result)
    count = sum(name.startswith("forebay") for name in modules)
    result = table(f"{len(modules)} modules, {count} of forebay; the slowest, one run", "module", "ms of its own")
    for time, name in own:
        result.add_row(name, f"{time:.1f}")
    show(result)


if __name__ == "__main__":
    main()
