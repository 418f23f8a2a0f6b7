"""The demo (examples/train_digits.py) under plain Python and under `forebay run`: time of the training, in turns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure import in_turns, show, table

DEMO = Path(__file__).parents[1] / "examples/train_digits.py"
ROUNDS = 3


def seconds(*command: str) -> float:
    """Run the demo once. Returns the time that it prints, which excludes imports and the report."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, *command, str(DEMO), "--epochs", "2"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return float(re.search(r"after ([\d.]+) s", done.stdout)[1])


if __name__ == "__main__":
    times = in_turns(seconds, lambda: seconds("-m", "forebay", "run", "--quiet"), repetitions=ROUNDS)
    plain, recorded = (median(each) for each in zip(*times, strict=True))
    result = table("Training of the demo: seconds", "program", "seconds", "ratio")
    result.add_row("python train_digits.py", f"{plain:.2f}", "")
    result.add_row("forebay run train_digits.py", f"{recorded:.2f}", f"{recorded / plain:.2f}")
    show(result)
