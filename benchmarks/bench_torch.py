"""PyTorch on emulated GPUs: the time of a training step with values, against plain PyTorch, and of one without.

Each run is a fresh process, in turns. On a machine with other load, times of the processor tell more than the clock.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from measure import in_turns, show, table
from rich.table import Table

from forebay._base.byte_sizes import format_bytes

HERE = Path(__file__).parent
PROGRAM = str(HERE / "torch_programs.py")
ROUNDS = 7
GPT2 = ("gpt2", "2", "256", "3", "float32")


def run(command: list[str], *arguments: str) -> dict[str, object]:
    started = perf_counter()
    done = subprocess.run([sys.executable, *command, PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout), "wall": perf_counter() - started}


def emulated(folder: str, card: str, *options: str) -> list[str]:
    words = f"-m forebay run --overwrite --quiet --emulate cuda:1@{card} --output".split()
    return [*words, folder, *options]


def main() -> None:
    with TemporaryDirectory() as folder:
        found: list[dict[str, object]] = []

        def measure(command: list[str], device: str) -> float:
            found.append(run(command, device, *GPT2))
            return 0.0

        in_turns(
            lambda: measure([], "cpu"), lambda: measure(emulated(folder, "rtx_4090"), "cuda"), repetitions=ROUNDS
        )  # fmt: skip
        plain, ours = found[::2], found[1::2]
        rows = table(
            f"GPT-2 small, a training step of 2 x 256 tokens, median of {ROUNDS} runs with 2 steps each",
            "", "plain PyTorch", "--compute", "ratio",
        )  # fmt: skip
        for name, label in (("processor", "processor, s"), ("seconds", "clock, s")):
            times = [median(each for result in part for each in result[name][1:]) for part in (plain, ours)]
            rows.add_row(label, *(f"{each:.2f}" for each in times), f"{times[1] / times[0]:.2f}")
        host = [max(result["host"] for result in part) for part in (plain, ours)]
        rows.add_row("host memory", *map(format_bytes, host), f"{host[1] / host[0]:.2f}")
        show(rows)

        for name, options in (("Llama 7B", ()), ("80 layers", ("--memory", "2TiB"))):  # which no card has
            show(without_values(folder, name, *options))


def without_values(folder: str, name: str, *options: str) -> Table:
    """Measure a step of a model."""
    arguments = ("llama" if name == "Llama 7B" else "80-layers", "1", "2048", "1", "bfloat16")
    every = [run(emulated(folder, "h100", *options, "--shapes-only"), "cuda", *arguments) for _ in range(ROUNDS)]
    shapes = every[0]  # memory is the same in all of them
    rows = table(
        f"{name}, bfloat16 and AdamW, a step of 2,048 tokens on an H100, --shapes-only, median of {ROUNDS} runs",
        "", "",
    )  # fmt: skip
    rows.add_row("parameters", f"{shapes['parameters']:,}")
    rows.add_row("step, clock", f"{median(each['seconds'][0] for each in every):.1f} s")
    rows.add_row("step, processor", f"{median(each['processor'][0] for each in every):.1f} s")
    rows.add_row("program with its start and the report, clock", f"{median(each['wall'] for each in every):.1f} s")
    rows.add_row("host memory", format_bytes(shapes["host"]))
    rows.add_row("peak allocated on the device", format_bytes(shapes["allocated"]))
    rows.add_row("peak reserved on the device", format_bytes(shapes["reserved"]))
    return rows


if __name__ == "__main__":
    main()
