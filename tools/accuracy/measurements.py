"""Measurements that others made on GPUs and published: one row each, with the command that rehearses it.

The tables are those of shared/data/gpu-truth beside the checkout; its README says how the runs were made. Rows that are
no peaks (flags of timm_a100.csv) are left out. A row of timm_a100.csv is computed from runs at two batch sizes.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["TABLES", "Measurement", "Published", "measurements"]

MIB = 1 << 20
A100 = 42_298_834_944  # bytes that an A100 with 40 GB reports
WORKLOADS = Path(__file__).parent / "workloads"
CARDS = {"NVIDIA GeForce RTX 3060": "rtx_3060", "NVIDIA GeForce RTX 4060": "rtx_4060_laptop"}  # as many multiprocessors
ON_A_LINE = (16, 32)  # batch sizes that run; the others are on the line through both


class Published(NamedTuple):
    """The answer of another tool: bytes, and whether its run failed under the answer or its verdict was wrong."""

    nbytes: float
    failed: bool


class Measurement(NamedTuple):
    """A run on a GPU.

    Parameters
    ----------
    name : str
        A name that is unique in its table.
    table, family, model, optimizer : str
        The table; what its errors are grouped by; the network and the optimizer.
    batch : int
        The batch size.
    card : str
        The profile of the card.
    capacity : int
        The card's bytes.
    recorded : int
        The peak in bytes, as the table has it.
    ran_out : bool
        The run ended with an out-of-memory error, so that `recorded` is no peak.
    varies : bool
        The lengths of the batches were random, so that the peak depends on their order.
    commands : mapping
        The arguments of `fit` by batch size: one, or two that determine a line.
    published : dict
        The answers of other tools by name.
    """

    name: str
    table: str
    family: str
    model: str
    optimizer: str
    batch: int
    card: str
    capacity: int
    recorded: int
    ran_out: bool
    varies: bool
    commands: Mapping[int, tuple[str, ...]]
    published: dict[str, Published]


def measurements(folder: Path, table: str) -> Iterator[Measurement]:
    """Yield the rows of a table, in the order of a hash of their names, so that the first ones are a sample."""
    with (folder / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        rows = [each for row in csv.DictReader(file) for each in TABLES[table](row)]
    yield from sorted(rows, key=lambda each: order(each.model if table == "timm_a100" else each.name))


def order(name: str) -> bytes:
    """Return a number that has nothing to do with what a name says."""
    return hashlib.sha256(name.encode()).digest()


def xmem(row: dict[str, str]) -> Iterator[Measurement]:
    """Yield a row of xMem's public results: what NVML showed less what it showed before the first tensor."""
    ran_out = row["real_oom"] == "True"
    workload = "language_model.py" if row["kind"] == "transformer" else "small_images.py"
    zero_grad = row["zero_grad"] if row["zero_grad"] in ("0", "1", "2") else "0"
    command = (str(WORKLOADS / workload), row["model"], row["optimizer"], row["batch"], zero_grad)
    answers = {}
    for tool in ("xmem", "dnnmem", "schedtune", "llmem"):
        check = row[f"{tool}_check"]
        if row[tool] and float(row[tool]) > 0 and check not in ("absent", "not read"):
            wrong_verdict = (check == "said OOM") != ran_out
            answers[tool] = Published(float(row[tool]), wrong_verdict or check == "OOM under its limit")
    family = "transformers" if row["kind"] == "transformer" else "CNNs"
    yield Measurement(
        f"{row['id']} {row['model']} {row['optimizer']} {row['batch']}", "xmem", family, row["model"], row["optimizer"],
        int(row["batch"]), CARDS[row["card"]], int(row["total_bytes"]), int(row["gpu_peak_bytes"]), ran_out,
        row["kind"] == "transformer" and int(row["batch"]) < 15, {int(row["batch"]): command}, answers,
    )  # fmt: skip


def imagenet(row: dict[str, str]) -> Iterator[Measurement]:
    """Yield a row of GPUMemNet's networks whose whole script is public: what nvidia-smi showed."""
    command = (str(WORKLOADS / "imagenet.py"), row["script"], row["batch"])
    fake = Published(float(row["faketensor_forward_backward_mib"]) * MIB, failed=True)
    yield Measurement(
        f"{row['script']} {row['batch']}", "gpumemnet_cnn18", "CNNs", row["script"], "Adam", int(row["batch"]),
        "a100_40gb", A100, int(row["gpu_mib"]) * MIB, False, False, {int(row["batch"]): command}, {"FakeTensor": fake},
    )  # fmt: skip


def timm(row: dict[str, str]) -> Iterator[Measurement]:
    """Yield a row of GPUMemNet's timm models, whose script is not public, if it is a peak."""
    if row["flag"]:
        return
    commands = {batch: (str(WORKLOADS / "timm_model.py"), row["model"], str(batch)) for batch in ON_A_LINE}
    fake = Published(float(row["faketensor_mib"]) * MIB, failed=float(row["faketensor_mib"]) < float(row["gpu_mib"]))
    yield Measurement(
        f"{row['model']} {row['batch']}", "timm_a100", "timm", row["model"], "SGD", int(row["batch"]), "a100_40gb",
        A100, int(float(row["gpu_mib"])) * MIB, False, False, commands, {"FakeTensor": fake},
    )  # fmt: skip


TABLES: dict[str, Callable[[dict[str, str]], Iterator[Measurement]]] = {
    "xmem": xmem, "gpumemnet_cnn18": imagenet, "timm_a100": timm,
}  # fmt: skip
