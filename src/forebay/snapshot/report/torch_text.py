"""Text reports of snapshots in PyTorch's schema, identical to those of `torch.cuda._memory_viz`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forebay.snapshot.replay.ordered import SortedAddresses
from forebay.snapshot.report.flamegraph import block_frames

__all__ = [
    "LEGEND",
    "PAGE_SIZE",
    "Bytes",
    "active_bytes",
    "format_size",
    "free_text",
    "segments_text",
    "trace_text",
    "unfreed",
]

PAGE_SIZE = 20 << 20
_FILLED = "0123456789*"


def format_size(num: float) -> str:
    """Format a size with one decimal and the unit: "20.0MiB"."""
    for unit in ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi"):
        if abs(num) < 1024:
            return f"{num:3.1f}{unit}B"
        num /= 1024
    return f"{num:.1f}YiB"


class Bytes:
    """A number of bytes whose repr has a unit."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, rhs: int) -> Bytes:
        return Bytes(self.value + rhs)

    def __repr__(self) -> str:
        return format_size(self.value)


LEGEND = f"""
Legend:
    [a     ] - a segment in the allocator
     ^-- a page {Bytes(PAGE_SIZE)} of memory in the segment
    a-z: pages filled with a single block's content
    ' ': page is completely free
    *: page if completely full with multiple blocks
    0-9: page is partially full with tensors of multiple blocks (9 == 90% full)
    (X% internal) - of the free memory, X% is free because we rounded the size of the allocation.
"""


def active_bytes(seg: Mapping[str, Any]) -> int:
    """Return the bytes in live blocks of a segment."""
    return sum(block["size"] for block in seg["blocks"] if block["state"] == "active_allocated")


def segments_text(data: Mapping[str, Any]) -> str:
    """Return one line for each segment of 20 MiB or more, with one character per 20 MiB, and the totals.

    Raises AssertionError if the blocks of a segment do not fill it.
    """
    lines = [f"Summary of segments >= {Bytes(PAGE_SIZE)} in size"]
    reserved = allocated = outside = inside = 0
    for seg in sorted(data["segments"], key=lambda row: (row["total_size"], active_bytes(row))):
        used = list(_used(seg))
        requested = sum(nbytes for _, nbytes, _ in used)
        rounding = sum(size for _, _, size in used) - requested
        free = sum(block["size"] for block in seg["blocks"]) - requested - rounding
        total = seg["total_size"]
        if free + rounding + requested != total:
            raise AssertionError(f"Segment size mismatch: {free} + {rounding} + {requested} != {total}")
        reserved, allocated = reserved + total, allocated + requested
        outside, inside = outside + free, inside + rounding
        if total >= PAGE_SIZE:
            stream = f" stream_{seg['stream']}" if seg["stream"] else ""
            lines.append(f"[{_pages(total, used)}] {Bytes(total)} allocated, {free_text(free, rounding)} free{stream}")
    lines += [
        f"segments: {len(data['segments'])}",
        f"total_reserved: {Bytes(reserved)}",
        f"total_allocated: {Bytes(allocated)}",
        f"total_free: {free_text(outside, inside)}",
    ]
    return "\n".join(lines) + "\n" + LEGEND


def _used(seg: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield the offset, requested bytes and size of each live block of a segment."""
    at = 0
    for block in seg["blocks"]:
        if block["state"] == "active_allocated":
            yield at, block_frames(block)[1], block["size"]
        at += block["size"]


def _pages(total: int, used: Sequence[tuple[int, int, int]]) -> str:
    count = -(-total // PAGE_SIZE)
    shown, filled = [" "] * count, [0.0] * count
    for number, (begin, nbytes, _) in enumerate(used):
        end = begin + nbytes
        for page in range(begin // PAGE_SIZE, -(-end // PAGE_SIZE)):
            filled[page] += (min(end, (page + 1) * PAGE_SIZE) - max(begin, page * PAGE_SIZE)) / PAGE_SIZE
            alone = shown[page] == " "
            shown[page] = chr(ord("a") + number % 26) if alone else _FILLED[int(filled[page] * 10)]
    return "".join(shown)


def free_text(free_external: int, free_internal: int) -> str:
    """Return the free bytes between blocks and within them, as one size and the share of the second."""
    total = free_external + free_internal
    return f"{Bytes(total)} ({free_internal / total:.1%} internal)" if total else f"{Bytes(0)}"


def trace_text(data: Mapping[str, Any]) -> str:
    """Return the history as a pseudo-program that names blocks and segments and deletes them with `del`."""
    return "".join(
        f"Device {device} ----------------\n{_TraceProgram(data['segments'], entries).text()}"
        for device, entries in enumerate(data["device_traces"])
        if entries
    )


class _TraceProgram:
    """The history of one device as a pseudo-program."""

    def __init__(self, segments: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]) -> None:
        self._segments = segments
        self._entries = entries
        self._allocated_segments = _Segments()
        self._final: _Segments | None = None
        self._segment_names: dict[int, str] = {}
        self._block_names: dict[int, str] = {}
        self._names_used = 0
        self._total = 0

    def text(self) -> str:
        lines = [f"{len(self._entries)} entries", *map(self._line, self._entries)]
        return "".join(f"{line}\n" for line in lines) + f"TOTAL MEM: {Bytes(self._total)}"

    def _line(self, entry: Mapping[str, Any]) -> str:
        address, size = entry.get("addr", 0), Bytes(entry["size"])
        match entry["action"]:
            case "alloc":
                self._total += entry["size"]
                name = self._block_names[address] = self._name()
                segment, begin = self._segment_of(address)
                return f"{name} = {segment}[{address - begin}:{size}]"
            case "free_requested":
                return f"del {self._block_names.get(address, address)} # {size}"
            case "free_completed":
                self._total -= entry["size"]
                return f"# free completed for {self._block_names.get(address, address)} {size}"
            case "segment_alloc":
                name = self._segment_names[address] = self._name()
                self._allocated_segments.add(name, address, entry["size"])
                return f"{name} = cudaMalloc({address}, {size})"
            case "segment_free":
                return f"cudaFree({self._segment_names.get(address, address)}) # {size}"
            case "oom":
                return f"raise OutOfMemoryError # {size} requested, {Bytes(entry['device_free'])} free in CUDA"
            case "annotate":
                return f"# annotate {self._block_names.get(address, address)}: {entry['user_metadata']}"
        return str(entry)

    def _name(self) -> str:
        """Return the next name: a to z, then a1 to z1, and so on."""
        suffix, letter = divmod(self._names_used, 26)
        self._names_used += 1
        return chr(ord("a") + letter) + (str(suffix) if suffix else "")

    def _segment_of(self, address: int) -> tuple[str, int]:
        """Return name and start of the first allocated segment that contains the address, or of the final one."""
        for ranges in (self._allocated_segments, self._final_segments()):
            if (found := ranges.at(address)) is not None:
                return found
        return "MEM", 0

    def _final_segments(self) -> _Segments:
        if self._final is None:
            self._final = _Segments()
            for at, row in enumerate(self._segments):
                self._final.add(f"seg_{at}", row["address"], row["allocated_size"])
        return self._final


class _Segments:
    """Segments by address. Of two that overlap, the first one counts."""

    def __init__(self) -> None:
        self._starts = SortedAddresses()
        self._ranges: dict[int, tuple[int, str, int]] = {}  # end, name and start of the segment, by start of the range

    def add(self, name: str, begin: int, size: int) -> None:
        at, end = begin, begin + size
        while at < end:
            before = self._starts.at_or_before(at)
            if before is not None and self._ranges[before][0] > at:
                at = self._ranges[before][0]
                continue
            after = self._starts.after(at)
            stop = end if after is None else min(end, after)
            self._starts.add(at)
            self._ranges[at] = stop, name, begin
            at = stop

    def at(self, address: int) -> tuple[str, int] | None:
        start = self._starts.at_or_before(address)
        if start is None or address >= self._ranges[start][0]:
            return None
        return self._ranges[start][1:]


def unfreed(data: dict[str, Any]) -> dict[str, Any]:
    """Remove the entries of blocks that were both allocated and freed in the history. Changes and returns `data`."""
    for device, entries in enumerate(data["device_traces"]):
        kept = set(range(len(entries)))
        alloc_entries: dict[int, int] = {}  # by address
        free_requested: set[int] = set()
        for at, entry in enumerate(entries):
            address = entry.get("addr", 0)
            match entry["action"]:
                case "alloc":
                    alloc_entries[address] = at
                case "free_requested":
                    free_requested.add(address)
                    if address in alloc_entries:
                        kept -= {at, alloc_entries.pop(address)}
                case "free_completed" if address in free_requested:
                    free_requested.discard(address)
                    kept.discard(at)
                case "free_completed":
                    sys.stdout.write(f"free_completed without free_requested: {entry}\n")
        data["device_traces"][device] = [entry for at, entry in enumerate(entries) if at in kept]
    return data
