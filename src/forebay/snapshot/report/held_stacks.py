"""Memory held at a moment by stack, in formats of other viewers: speedscope, d3-flame-graph, folded stacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TextIO

import numpy as np

from forebay._base.untrusted import printable, shortened
from forebay.records.model import Frame, Snapshot
from forebay.records.program_stacks import program_stacks
from forebay.snapshot.analysis.timeline import NEVER_SEEN, reconstruct

__all__ = ["held_stacks", "write_flamegraph", "write_folded", "write_speedscope"]

_MAX_FRAMES, _MAX_NAME = 200, 300  # of one stack, characters of a name: files of others may hold any number
_UNKNOWN = Frame("", "allocated before the recording", 0)
_NO_STACK = Frame("", "no stack recorded", 0)
_CUT = Frame("", "… (outer frames)", 0)


def held_stacks(snapshot: Snapshot, moment: int | None = None) -> list[tuple[tuple[Frame, ...], int]]:
    """Return the requested bytes that were live at a moment by stack, outermost frame first; most bytes first.

    Equal stacks are one, and have no frames of forebay.

    The moment is a number of history entries; by default the first moment of the peak. A stack has at most 200 frames,
    the innermost ones.
    """
    timeline = reconstruct(snapshot)
    held, own = timeline.allocations, program_stacks(snapshot)
    rows = held.live_at(timeline.peak if moment is None else moment)
    stacks, which = np.unique(own.of_stack[held.stack[rows]], return_inverse=True)
    shown = replace(snapshot, stacks=own.stacks)
    sums = np.zeros(len(stacks), np.int64)
    np.add.at(sums, which, held.nbytes[rows])
    found = [(_frames(shown, stack), nbytes) for stack, nbytes in zip(stacks.tolist(), sums.tolist(), strict=True)]
    return sorted((each for each in found if each[1]), key=lambda each: (-each[1], each[0]))


def _frames(snapshot: Snapshot, stack: int) -> tuple[Frame, ...]:
    if stack == NEVER_SEEN:
        return (_UNKNOWN,)
    frames = [*islice(snapshot.stack(stack), _MAX_FRAMES + 1)]
    if len(frames) > _MAX_FRAMES:
        frames[-1] = _CUT
    return tuple(reversed(frames)) or (_NO_STACK,)


def write_folded(snapshots: Sequence[Snapshot], out: TextIO) -> None:
    """Write folded stacks, one per line: the device and the frames joined by ";", a space, and bytes."""
    for snapshot in snapshots:
        for frames, nbytes in held_stacks(snapshot):
            names = ";".join(_name(frame).replace(";", ":") for frame in frames)
            out.write(f"{_text(snapshot.device)};{names} {nbytes}\n")


def write_speedscope(snapshots: Sequence[Snapshot], out: TextIO) -> None:
    """Write a file for https://www.speedscope.app, with two profiles for each device: at the peak, and at the end."""
    numbers: dict[Frame, int] = {}
    profiles = []
    for snapshot in snapshots:
        for title, moment in (("at the peak", None), ("at the end", len(snapshot.trace))):
            held = held_stacks(snapshot, moment)
            samples = [[numbers.setdefault(frame, len(numbers)) for frame in frames] for frames, _ in held]
            weights = [nbytes for _, nbytes in held]
            profiles.append(
                {"type": "sampled", "name": f"{_text(snapshot.device)} {title}", "unit": "bytes", "startValue": 0,
                 "endValue": sum(weights), "samples": samples, "weights": weights}
            )  # fmt: skip
    schema = "https://www.speedscope.app/file-format-schema.json"
    shared = [{"name": _text(frame.name), "file": _text(frame.file), "line": frame.line} for frame in numbers]
    json.dump({"exporter": "forebay", "$schema": schema, "shared": {"frames": shared}, "profiles": profiles}, out)


def write_flamegraph(snapshots: Sequence[Snapshot], out: TextIO) -> None:
    """Write the tree of d3-flame-graph: nested objects with "name", "value" in bytes, and "children"."""
    root = _node("memory at the peak")
    for snapshot in snapshots:
        for frames, nbytes in held_stacks(snapshot):
            node = root
            node["value"] += nbytes
            for name in (_text(snapshot.device), *map(_name, frames)):
                node = node["children"].setdefault(name, _node(name))
                node["value"] += nbytes
    json.dump(_listed(root), out)


def _node(name: str) -> dict[str, Any]:
    return {"name": name, "value": 0, "children": {}}


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    return node | {"children": [_listed(child) for child in node["children"].values()]}


def _name(frame: Frame) -> str:
    return f"{_text(frame.name)} ({_text(frame.file)}:{frame.line})" if frame.file else _text(frame.name)


def _text(text: str) -> str:
    return printable(shortened(text, _MAX_NAME))  # in this order: a million frames may have a name of a megabyte
