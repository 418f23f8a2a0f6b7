"""Golden traces, done again: is every address, text, statistic and segment what PyTorch's allocator gave?

    python -m support.golden.command [--model] FILE...

says so for each file, with the first difference in full. It exits with 1 when anything differs, and with 2 when a file
is missing or is no golden trace.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from forebay.simulate import Device, Pinned, World
from support.golden.files import NotGolden, Trace, read, text_in_our_words
from support.golden.replay import Replay
from support.model import ModelDevice
from support.model.pinned import ModelPinned

__all__ = ["ASPECTS", "Difference", "Report", "main", "run", "run_trace", "simulated"]

ASPECTS = ("addresses", "other results", "statistics", "segments", "device memory")
_ERRORS = {"torch.OutOfMemoryError": "OutOfMemory", "torch.AcceleratorError": "RuntimeError"}
_Made = Callable[..., Any]


def simulated(*, model: bool = False) -> tuple[_Made, _Made]:
    """What a trace runs on: simulated devices of one world and pinned memory, or the plain models of both."""
    return (ModelDevice, ModelPinned) if model else (partial(Device, world=World()), Pinned)


@dataclass
class Difference:
    """Where a replay first left the trace."""

    number: int
    operation: dict[str, Any]
    aspect: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return (
            f"  first difference: {self.aspect} of operation {self.number}: {json.dumps(self.operation)}\n"
            f"    expected: {_shown(self.expected)}\n"
            f"    got:      {_shown(self.got)}"
        )


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        return repr(value)


@dataclass
class Report:
    """How much of a trace came out equal; `counts` has equal and all for each of ASPECTS."""

    name: str
    operations: int = 0
    counts: dict[str, list[int]] = field(default_factory=lambda: {aspect: [0, 0] for aspect in ASPECTS})
    first: Difference | None = None

    @property
    def equal(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        parts = ", ".join(f"{equal} of {every} {aspect}" for aspect, (equal, every) in self.counts.items())
        line = f"{self.name}: {self.operations} operations, equal: {parts}"
        return line if self.first is None else f"{line}\n{self.first}"

    def compare(self, record: dict[str, Any], aspect: str, expected: Any, got: Any) -> None:
        self.counts[aspect][1] += 1
        if expected == got:
            self.counts[aspect][0] += 1
        elif self.first is None:
            self.first = Difference(record["i"], record["op"], aspect, *_where_they_differ(expected, got))


def _differ(key: str, expected: dict[str, Any], got: dict[str, Any]) -> bool:
    return key not in expected or key not in got or expected[key] != got[key]


def _where_they_differ(expected: Any, got: Any) -> tuple[Any, Any]:
    """Both, without what is equal in them."""
    if isinstance(expected, dict) and isinstance(got, dict):
        pairs = {
            k: _where_they_differ(expected.get(k), got.get(k)) for k in expected | got if _differ(k, expected, got)
        }
        return {k: v for k, (v, _) in pairs.items() if k in expected}, {k: v for k, (_, v) in pairs.items() if k in got}
    if isinstance(expected, list) and isinstance(got, list):
        same = next((i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None)
        if same is not None:
            return {"at": same, "is": expected[same]}, {"at": same, "is": got[same]}
        at = min(len(expected), len(got))
        return {"count": len(expected), "more": expected[at:]}, {"count": len(got), "more": got[at:]}
    return expected, got


def run(path: str | Path, make_device: _Made | None = None, make_pinned: _Made | None = None) -> Report:
    """The report on a file; NotGolden when it is none. The devices are `forebay.simulate`'s unless given."""
    return run_trace(read(path), Path(path).name, make_device, make_pinned)


def run_trace(
    trace: Trace, name: str = "trace", make_device: _Made | None = None, make_pinned: _Made | None = None
) -> Report:
    if make_device is None or make_pinned is None:
        device, pinned = simulated()
        make_device, make_pinned = make_device or device, make_pinned or pinned
    report = Report(name)
    replay = Replay(trace, make_device, make_pinned)
    expected_stats: dict[str, dict[str, int]] = {}
    for record in trace.records:
        report.operations += 1
        try:
            result = replay.do(record["op"])
        except NotGolden as error:
            raise NotGolden(f"{name}: no golden trace: {error}") from None
        if "result" not in record:
            if "error" in result:  # the traces record every error
                report.compare(record, "other results", {}, result)
            continue
        expected = _in_our_words(record["result"])
        report.compare(record, "addresses" if "addr" in expected else "other results", expected, result)
        named = [key for key in record if key.removesuffix("_delta").rstrip("0123456789").endswith("stats")]
        for key in named:
            of = key.removesuffix("_delta")
            expected_stats[of] = {**(expected_stats[of] if key != of else {}), **record[key]}
        for gone in record.get("stats_gone", ()):
            of, _, stat = gone.partition(":")
            del expected_stats[of][stat]
        if named:
            report.compare(record, "statistics", expected_stats, replay.stats(expected_stats))
        if "device_used" in record:
            report.compare(record, "device memory", replay.free_memory(record["device_used"]), replay.free_memory())
        if "segments" in record:
            report.compare(record, "segments", record["segments"], replay.segments())
    return report


def _in_our_words(result: dict[str, Any]) -> dict[str, Any]:
    result = {key: value for key, value in result.items() if key != "bases"}
    if "error" in result:
        result["error"] = _ERRORS.get(result["error"], result["error"].rpartition(".")[2])
    for key in ("message", "summary"):
        if key in result:
            result[key] = text_in_our_words(result[key])
    if "message" in result:
        result["message"] = result["message"].partition("\n")[0]  # ours has lines of its own after the first
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m support.golden.command",
        description="Do golden traces again, and say what is equal to PyTorch's allocator.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a trace, .jsonl or .jsonl.xz")
    parser.add_argument("--model", action="store_true", help="on the plain model instead of the simulated device")
    options = parser.parse_args(arguments)
    status = 0
    for path in options.files:
        try:
            report = run(path, *simulated(model=options.model))
        except NotGolden as error:
            sys.stderr.write(f"{error}\n")
            status = 2
        else:
            sys.stdout.write(f"{report}\n")
            status = status or int(not report.equal)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # whoever read it has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
