"""A history of training steps that the program marked, as the dicts of PyTorch's snapshots."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
BASE = 1 << 40
START = 1_700_000_000_000_000  # µs


def annotated(steps: int = 4, *, name: str = "ProfilerStep#{}", device: int = 0, first: int = 0) -> dict[str, Any]:
    """Return steps of a forward pass of 8 MiB and a backward pass of 4 MiB, each of which keeps 1 MiB.

    The steps have no common number of allocations: step n allocates n small blocks besides. A millisecond passes at
    each mark and each entry.
    """
    marks: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    clock = START
    used = BASE

    def mark(stage: str, text: str) -> None:
        nonlocal clock
        clock += 1000
        marks.append({"stage": stage, "name": text, "device": device, "time_us": clock})

    def entry(action: str, address: int, size: int, line: int, metadata: str = "") -> None:
        nonlocal clock
        clock += 1000
        frames = [{"filename": "net.py", "line": line, "name": "step"}]
        entries.append({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": clock, "frames": frames,
            "user_metadata": metadata, "compile_context": "N/A", "pool_id": (0, 0),
        })  # fmt: skip

    def allocate(size: int, line: int, metadata: str = "") -> int:
        nonlocal used
        address, used = used, used + size
        entry("alloc", address, size, line, metadata)
        return address

    entry("segment_alloc", BASE, 1024 * MIB, 1)
    blocks = []
    for number in range(first, first + steps):
        mark("START", name.format(number))
        mark("START", "forward")
        temporary = [(allocate(8 * MIB, 10, '{"phase":"forward"}'), 8 * MIB)]
        temporary += [(allocate(512, 11), 512) for _ in range(number)]
        mark("END", "forward")
        mark("START", "backward")
        temporary.append((allocate(4 * MIB, 20), 4 * MIB))
        mark("END", "backward")
        blocks.append(allocate(MIB, 30))
        for address, size in temporary:
            for action in ("free_requested", "free_completed"):
                entry(action, address, size, 40)
        mark("END", name.format(number))
    frames = entries[-1]["frames"]
    live = [{"address": each, "size": MIB, "requested_size": MIB, "state": "active_allocated",
             "frames": [{**frames[0], "line": 30}]} for each in blocks]  # fmt: skip
    segment = {"device": device, "address": BASE, "total_size": 1024 * MIB, "stream": 0, "blocks": _filled(live)}
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device)]
    return {"segments": [segment], "device_traces": [*traces, entries], "external_annotations": marks}


def _filled(live: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the live blocks with the free ones between them."""
    found, at = [], BASE
    for block in [*live, {"address": BASE + 1024 * MIB, "size": 0}]:
        if block["address"] > at:
            found.append({"address": at, "size": block["address"] - at, "requested_size": 0, "state": "inactive"})
        if block["size"]:
            found.append(block)
        at = block["address"] + block["size"]
    return found
