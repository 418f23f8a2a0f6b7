"""Processor time of `forebay fit` beside that of `import torch`, for one card, for four, and for thirty.

All processes of a command count, also those whose parent has ended: this process adopts them. On Linux.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from measure import in_turns, show, table

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "train_gpt2.py")
ROUNDS = 7
ADOPT_CHILDREN = 36  # PR_SET_CHILD_SUBREAPER
FOUR = "t4,rtx_4090,a100,h100"
THIRTY = (
    "t4,rtx_4090,a100,h100,h200,b200,l4,l40s,a10,a10g,v100,v100_16gb,a40,rtx_a6000,rtx_3090,rtx_3080,rtx_3070,"
    "rtx_3060,rtx_4080,rtx_4070,rtx_4060_ti_16gb,rtx_5090,rtx_5080,rtx_5060,rtx_2080_ti,rtx_2070,rtx_pro_6000,gb10,"
    "gh200_480gb,rtx_6000_ada"
)
COMMANDS = {  # the arguments of Python, and the bound of the seconds beyond `import torch`
    "import torch": (["-c", "import torch"], ""),
    "one card": (["--cards", "h100"], "≤ 2"),
    "four cards": ([], "≤ 6"),
    "four cards, two of which run out": (["--cards", FOUR], "≤ 6"),
    "thirty cards, ten of which run out": (["--cards", THIRTY], "≤ 15"),
}
OPTIONS = {"four cards, two of which run out": ["--batch", "24"]}


def seconds(arguments: list[str]) -> float:
    """Return the processor time of a command and of all processes that it has left."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=False)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def arguments(name: str) -> list[str]:
    given, _ = COMMANDS[name]
    if given[:1] == ["-c"]:
        return given
    return ["-m", "forebay", "fit", *given, EXAMPLE, *OPTIONS.get(name, [])]


def main() -> None:
    ctypes.CDLL(None).prctl(ADOPT_CHILDREN, 1, 0, 0, 0)
    names = [*COMMANDS]
    rounds = in_turns(*((lambda name=name: seconds(arguments(name))) for name in names), repetitions=ROUNDS)
    result = table("forebay fit examples/train_gpt2.py, processor time", "command", "s", "beyond import torch", "bound")
    for at, name in enumerate(names):
        beyond = f"{median(times[at] - times[0] for times in rounds):.1f}" if at else ""
        result.add_row(name, f"{median(times[at] for times in rounds):.1f}", beyond, COMMANDS[name][1])
    show(result)


if __name__ == "__main__":
    main()
