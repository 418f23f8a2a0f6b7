"""Ranges of the memory outside PyTorch's allocator, by class of card, from recorded figures.

    python3 tools/outside_memory.py           # compares src/forebay/_base/outside_memory.toml with the data
    python3 tools/outside_memory.py --write   # writes it

The data are out-of-memory messages (tests/data/outside_memory) and the measurements of `dev.py gpu`
(tests/data/gpu-truth). Of each group of messages, the median counts, so that a long log of one machine is one figure.
The range of a class is that from 5 % to 75 % of its groups, and its value the median: beyond, figures contain other
allocators and NCCL's buffers. A measured card has a row of its own: from the context with a first kernel, over
cuBLAS and cuDNN, to everything that was measured on one device.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).parents[1]
MESSAGES = ROOT / "tests/data/outside_memory/messages.csv"
MEASURED = ROOT / "tests/data/gpu-truth"
TABLE = ROOT / "src/forebay/_base/outside_memory.toml"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CardClass:
    """Cards whose figures count together. The first class whose conditions a card meets is its own."""

    name: str
    cards: tuple[str, ...]  # of the column "card"
    conditions: str  # lines of TOML


# The A100 with 40 GB has no figures of its own: four of its seven groups are above 1.5 GiB, which are other allocators.
CLASSES = (
    CardClass("GeForce below 6 GB", ("small (<6 GB)",), "geforce = true\nmemory_gib = [0, 6]"),
    CardClass(
        "GeForce with 8 to 16 GB",
        ("8 GB GeForce", "10 GB (RTX 3080)", "11 GB (GTX 1080 Ti / RTX 2080 Ti)", "12 GB GeForce", "16 GB GeForce"),
        "geforce = true\nmemory_gib = [6, 20]",
    ),
    CardClass("RTX 3090 and 4090", ("RTX 3090/4090 (24 GB)",), "geforce = true\nmemory_gib = [20, 28]"),
    CardClass("RTX 5090", ("RTX 5090 (32 GB)",), "geforce = true\nmemory_gib = [28, 64]"),
    CardClass(
        "V100 and P100", ("V100 16 GB", "V100 32 GB", "P100 16 GB"), "capabilities = [60, 70]\nmemory_gib = [10, 40]"
    ),
    CardClass("T4", ("T4 (16 GB)",), "capabilities = [75]\nmemory_gib = [10, 18]"),
    CardClass(
        "A100, H100, H200, B200 and other cards with 80 GB and more",
        ("A100/H100 80 GB", "H100 NVL (94 GB)", "H200", "B200", "96 GB (GH200, H20, RTX PRO 6000)"),
        "capabilities = [80, 90, 100, 103, 120]\nmemory_gib = [20, 400]",
    ),
    CardClass("A10, A10G and L4", ("A10/A10G/L4 (24 GB)",), "capabilities = [75, 86, 89]\nmemory_gib = [18, 28]"),
    CardClass(
        "A40, L40, L40S, RTX A6000 and 6000 Ada",
        ("L40/L40S/A40 (48 GB)", "RTX A6000 / 6000 Ada (48 GB)"),
        "capabilities = [75, 86, 89]\nmemory_gib = [28, 64]",
    ),
)
_LEFT_OUT = ("doubtful", "free-plus-process-below-capacity")  # beginnings of notes
HEAD = """\
# Memory outside PyTorch's allocator: CUDA's context and modules, cuBLAS and cuDNN, compiled kernels. Sizes in MiB.
# Written by tools/outside_memory.py; do not edit. The first [[class]] whose conditions a card meets is its own.
# low, high: of 5 % and 75 % of the groups of messages; value: the median. [[card]]: measured by `dev.py gpu`.
source = "out-of-memory messages of public programs"
torch = "2.1" # the oldest version of the messages, as their wording tells; the newest is 2.9 or later
cuda = "" # the messages do not state it, nor the driver
"""


def groups(rows: Iterable[Mapping[str, str]]) -> dict[str, list[float]]:
    """Return the GiB outside the allocator of each group of messages, by the column "card"."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["card"] and not row["note"].startswith(_LEFT_OUT):
            found[row["card"]][row["group"]].append(float(row["outside_gib"]))
    return {card: [median(each) for each in by_group.values()] for card, by_group in found.items()}


def bounds(gib: Sequence[float]) -> tuple[int, int, int]:
    """Return the MiB of 5 %, of the median and of 75 % of the figures."""
    cuts = quantiles(gib, n=20, method="inclusive")
    low, high = (round(cuts[at] * 1024) for at in (0, 14))
    return low, round(median(gib) * 1024), high


def measured(document: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return the MiB of a measured card: with a first kernel, with cuBLAS and cuDNN, and with everything."""
    steps = {each["name"]: each["outside"] for each in document["outside"] if each.get("outside") is not None}
    steps.pop("NCCL", None)  # a second range of its own size, which a program on one device does not have
    if "first kernel" not in steps:
        return None
    libraries = [value for name, value in steps.items() if name.startswith(("cuBLAS", "cuDNN", "first kernel"))]
    low, value, high = steps["first kernel"], max(libraries), max(steps.values())
    return round(low / MIB), round(value / MIB), round(high / MIB)


def table() -> str:
    """Return the content of the table."""
    with MESSAGES.open(newline="", encoding="utf-8") as file:
        by_card = groups(csv.DictReader(file))
    parts = [HEAD]
    for path in sorted(MEASURED.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if (found := measured(document)) is not None:
            versions = document["versions"]
            parts.append(
                f"[[card]]\nname = {json.dumps(document['card']['name'])}\ntorch = {json.dumps(versions['torch'])}\n"
                f'cuda = {json.dumps(versions.get("cuda") or "")}\nsource = "tests/data/gpu-truth/{path.name}"\n'
                f"{_range(*found)}"
            )
    for each in CLASSES:
        figures = [gib for card in each.cards for gib in by_card[card]]
        parts.append(
            f'[[class]]\nname = "{each.name}"\n{each.conditions}\ngroups = {len(figures)}\n{_range(*bounds(figures))}'
        )
    every = [gib for figures in by_card.values() for gib in figures]
    parts.append(f'[[class]]\nname = "any card"\ngroups = {len(every)}\n{_range(*bounds(every))}')
    return "\n".join(parts)


def _range(low: int, value: int, high: int) -> str:
    return f"low = {low}\nvalue = {value}\nhigh = {high}\n"


def main() -> int:
    """Compare the table with the data, or write it."""
    text = table()
    if sys.argv[1:] == ["--write"]:
        TABLE.write_text(text, encoding="utf-8")
        return 0
    if TABLE.read_text(encoding="utf-8") != text:
        print(f"{TABLE} is not that of the data: run python3 tools/outside_memory.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
