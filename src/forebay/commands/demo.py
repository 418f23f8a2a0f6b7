"""Show what forebay does, in half a minute, with what it brings along: no PyTorch, no GPU.

Rehearse: a recorded training step of GPT-2 is replayed with the memory of four cards. Explain: the error in which the
same step ended on the smallest of them. Measure: a program with NumPy, line by line. Each part ends with the command
that does the same for a program of yours.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.outside_memory import outside_memory
from forebay.commands import CommandError, command_output
from forebay.commands.run_output import free_directory

if TYPE_CHECKING:
    from rich.console import Console

_DATA = Path(__file__).with_name("demo_data")
_CARDS = ("t4", "rtx_4090", "a100", "h100")
_OUTPUT = Path("forebay-demo")
_SETTING = "max_split_size_mb:128"
_SHOWN = ("ran out of memory", "Who holds the live memory", "Changes of the program that avoid this error")


@dataclass(frozen=True)
class _Card:
    """Outcome of the recorded steps on a card."""

    name: str
    total: int  # bytes
    reserved: int  # bytes at the peak
    in_use: int  # bytes at the peak, with what is outside the allocator
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, default=_OUTPUT, metavar="DIRECTORY",
        help=f"directory for the report (default: {_OUTPUT})",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    with command_output():
        console = Console(highlight=False)
        _rehearse(console)
        _explain(console)
        return _measure(console, args.output)


def _rehearse(console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from forebay._base.byte_sizes import format_bytes

    _heading(console, "1. Rehearse: on which card does it fit?")
    console.print(
        "Two training steps of GPT-2 with 24 sequences, recorded on an emulated H100 and replayed by the rules of "
        "PyTorch's allocator with the memory of other cards. (forebay fit runs a program on each card, with the "
        "kernels that PyTorch chooses there.)\n"
    )
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("card", "", "reserved", "nvidia-smi", "of"):
        table.add_column(heading, justify="left" if heading in ("card", "") else "right")
    for card in _cards():
        sizes = (format_bytes(each) for each in (card.reserved, card.in_use, card.total))
        table.add_row(card.name, Text(card.text, "green" if card.text == "fits" else "red"), *sizes)
    console.print(table)
    _yours(console, "forebay fit --cards t4,rtx_4090,a100,h100 train.py")


def _cards() -> list[_Card]:
    from forebay import profiles, snapshot
    from forebay.snapshot.replay.engine import History

    (recorded,) = snapshot.load(_DATA / "train_gpt2_fits.forebay")
    history, found = History(recorded), []
    for name in _CARDS:
        outside, total = outside_memory(name), profiles.load(name).properties["total_memory"]
        outcome, text = history.run(None, total - outside.low), "fits"
        if outcome.ran_out is not None:
            other = history.run(_SETTING, total - outside.low)
            text = "does not fit" if other.ran_out is not None else f"fits with {_SETTING}"
        in_use = outcome.peak_reserved + outside.value
        found.append(_Card(name, total, outcome.peak_reserved, in_use, text))
    return found


def _explain(console: Console) -> None:
    from forebay import snapshot
    from forebay.snapshot.report.explanation import explanation
    from forebay.snapshot.report.explanation_text import paragraphs
    from forebay.snapshot.report.paragraph_rich import print_paragraphs

    path = _DATA / "train_gpt2_ran_out.forebay"
    _heading(console, "2. Explain: why did memory run out on the T4?")
    (recorded,) = snapshot.load(path)
    found = paragraphs(explanation(recorded))
    shown = [each for each in found if any(each.heading.endswith(title) for title in _SHOWN)]
    print_paragraphs(console, shown, alarm=True)
    rest = len(found) - len(shown)
    console.print(f"({rest} more sections: forebay explain {path})", soft_wrap=True, markup=False)
    _yours(console, "forebay explain snapshot.pickle", "written by torch.cuda.memory._dump_snapshot")


def _measure(console: Console, output: Path) -> int:
    """Run a program under `forebay run`, and return its status."""
    _heading(console, "3. Measure: which lines of a program allocate?")
    folder = free_directory(output)
    program = folder / "nearest.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_DATA / "nearest.txt", program)  # lines of forebay's own files are no sites
    except OSError as error:
        raise CommandError(f"cannot write {program}: {error.strerror}") from error
    command = [sys.executable, "-m", "forebay", "run", "--sample", "0", "--output", str(folder), str(program)]
    sys.stdout.flush()
    try:
        status = subprocess.run(command, check=False, stderr=subprocess.STDOUT).returncode
    except OSError as error:
        raise CommandError(f"cannot start {sys.executable}: {error.strerror}") from error
    _yours(console, "forebay run train.py")
    return 128 - status if status < 0 else status


def _heading(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text(f"{text}\n{'─' * len(text)}", "bold"))


def _yours(console: Console, command: str, remark: str = "") -> None:
    from rich.text import Text

    console.print(Text.assemble("\nYour program:  ", (command, "bold"), f"\n({remark})\n" if remark else "\n"))
