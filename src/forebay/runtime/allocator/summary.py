"""The table of a device's statistics: PyTorch's, character for character, except for the name in the title."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["memory_summary"]

_WIDTH = 75
_COLUMNS = ("current", "peak", "allocated", "freed")
_BY_POOL = {  # one row for all pools, one for each of the two
    "allocated_bytes": "Allocated memory",
    "active_bytes": "Active memory",
    "requested_bytes": "Requested memory",
    "reserved_bytes": "GPU reserved memory",
    "inactive_split_bytes": "Non-releasable memory",
    "allocation": "Allocations",
    "active": "Active allocs",
    "segment": "GPU reserved segments",
    "inactive_split": "Non-releasable allocs",
}
_ROWS = {"all": "", "large_pool": "      from large pool", "small_pool": "      from small pool"}
_WITHOUT_POOLS = {"oversize_allocations": "Oversize allocations", "oversize_segments": "Oversize GPU segments"}


def memory_summary(stats: Mapping[str, int], device: int = 0, *, kind: str = "cuda", abbreviated: bool = False) -> str:
    """Return the table for flat statistics; `abbreviated` leaves out the rows of the large and small pool."""
    thick, thin = "=" * _WIDTH, "-" * _WIDTH
    ooms, retries = stats.get("num_ooms", 0), stats.get("num_alloc_retries", 0)
    label = kind.upper()
    padding = len("CUDA") - len(label)  # added to the text after the label
    lines = [
        thick,
        f" {'':16} forebay {label} memory summary, device ID {str(device).ljust(17 + padding)} ",
        thin,
        f"  {'':9} {label} OOMs: {str(ooms).ljust(12 + padding)} | {'':6} cudaMalloc retries: {retries:<8d}  ",
        thick,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for metric, name in _BY_POOL.items():
        lines.append(thin)
        first = [stats.get(f"{metric}.all.{column}", 0) for column in _COLUMNS]
        for pool, row_name in list(_ROWS.items())[: 1 if abbreviated else None]:
            numbers = [stats.get(f"{metric}.{pool}.{column}", 0) for column in _COLUMNS]
            lines.append(_row(row_name or name, numbers, first, in_bytes=metric.endswith("bytes")))
    for metric, name in _WITHOUT_POOLS.items():
        numbers = [stats.get(f"{metric}.{column}", 0) for column in _COLUMNS]
        lines += [thin, _row(name, numbers, numbers, in_bytes=False)]
    return "".join(f"|{line}|\n" for line in (*lines, thick))


def _row(name: str, numbers: list[int], like: list[int], *, in_bytes: bool) -> str:
    """Format the numbers in the units chosen for `like`, so that the rows of a metric are comparable."""
    show = _size if in_bytes else _count
    return f" {name:<21} | " + " | ".join(map(show, numbers, like)) + " "


def _size(number: int, like: int) -> str:
    unit, power = _unit(like, ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB"), 1024, 768 << 10)
    return f"{number // power:6d} {unit}"


def _count(number: int, like: int) -> str:
    unit, power = _unit(like, (" ", "K", "M"), 1000, 750_000)
    return f"{number // power:7d} {unit} "


def _unit(like: int, units: tuple[str, ...], step: int, limit: int) -> tuple[str, int]:
    """Return the smallest unit in which `like` is below `limit`, else the largest."""
    at = 0
    while at + 1 < len(units) and like >= limit * step**at:
        at += 1
    return units[at], step**at
