"""Replay of golden traces, comparing every address, text, statistic and segment with PyTorch's allocator.

    python -m support.golden.command [--model] FILE...

reports on each file, with the first difference in full. The exit status is 1 if anything differs, and 2 if a file is
missing or invalid.
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
from support.golden.files import NotGolden, Trace, as_forebay_text, read
from support.golden.replay import Replay
from support.model import ModelDevice
from support.model.pinned import ModelPinned

__all__ = ["ASPECTS", "Difference", "Report", "main", "run", "run_trace", "simulated"]

ASPECTS = ("addresses", "other results", "statistics", "segments", "device memory")
_ERRORS = {"torch.OutOfMemoryError": "OutOfMemory", "torch.AcceleratorError": "RuntimeError"}
_Factory = Callable[..., Any]


def simulated(*, model: bool = False) -> tuple[_Factory, _Factory]:
    """Return factories of devices and pinned memory: simulated ones with a common clock, or the reference models."""
    return (ModelDevice, ModelPinned) if model else (partial(Device, world=World()), Pinned)


@dataclass
class Difference:
    """First operation whose result differs from the trace."""

    number: int
    operation: dict[str, Any]
    aspect: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return (
            f"  first difference: {self.aspect} of operation {self.number}: {json.dumps(self.operation)}\n"
            f"    expected: {_to_text(self.expected)}\n"
            f"    got:      {_to_text(self.got)}"
        )


def _to_text(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        return repr(value)


@dataclass
class Report:
    """Result of a replay; `counts` has the number of equal and of all comparisons for each of ASPECTS."""

    name: str
    operations: int = 0
    counts: dict[str, list[int]] = field(default_factory=lambda: {aspect: [0, 0] for aspect in ASPECTS})
    first: Difference | None = None

    @property
    def equal(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        parts = ", ".join(f"{equal} of {total} {aspect}" for aspect, (equal, total) in self.counts.items())
        line = f"{self.name}: {self.operations} operations, equal: {parts}"
        return line if self.first is None else f"{line}\n{self.first}"

    def compare(self, record: dict[str, Any], aspect: str, expected: Any, got: Any) -> None:
        self.counts[aspect][1] += 1
        if expected == got:
            self.counts[aspect][0] += 1
        elif self.first is None:
            self.first = Difference(record["i"], record["op"], aspect, *_reduce_to_difference(expected, got))


def _differ(key: str, expected: dict[str, Any], got: dict[str, Any]) -> bool:
    return key not in expected or key not in got or expected[key] != got[key]


def _reduce_to_difference(expected: Any, got: Any) -> tuple[Any, Any]:
    """Return both values without the parts that are equal."""
    if isinstance(expected, dict) and isinstance(got, dict):
        pairs = {
            k: _reduce_to_difference(expected.get(k), got.get(k)) for k in expected | got if _differ(k, expected, got)
        }
        return {k: v for k, (v, _) in pairs.items() if k in expected}, {k: v for k, (_, v) in pairs.items() if k in got}
    if isinstance(expected, list) and isinstance(got, list):
        index = next((i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None)
        if index is not None:
            return {"at": index, "is": expected[index]}, {"at": index, "is": got[index]}
        common = min(len(expected), len(got))
        return {"count": len(expected), "more": expected[common:]}, {"count": len(got), "more": got[common:]}
    return expected, got


def run(path: str | Path, make_device: _Factory | None = None, make_pinned: _Factory | None = None) -> Report:
    """Replay a file, on devices of `forebay.simulate` by default. Raises NotGolden if the file is invalid."""
    return run_trace(read(path), Path(path).name, make_device, make_pinned)


def run_trace(
    trace: Trace, name: str = "trace", make_device: _Factory | None = None, make_pinned: _Factory | None = None
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
            raise NotGolden(f"{name}: not a golden trace: {error}") from None
        if "result" not in record:
            if "error" in result:  # a trace records every error
                report.compare(record, "other results", {}, result)
            continue
        expected = _normalized(record["result"])
        report.compare(record, "addresses" if "addr" in expected else "other results", expected, result)
        stat_keys = [key for key in record if key.removesuffix("_delta").rstrip("0123456789").endswith("stats")]
        for key in stat_keys:
            source = key.removesuffix("_delta")
            expected_stats[source] = {**(expected_stats[source] if key != source else {}), **record[key]}
        for removed in record.get("stats_gone", ()):
            source, _, stat = removed.partition(":")
            del expected_stats[source][stat]
        if stat_keys:
            report.compare(record, "statistics", expected_stats, replay.stats(expected_stats))
        if "device_used" in record:
            report.compare(record, "device memory", replay.free_memory(record["device_used"]), replay.free_memory())
        if "segments" in record:
            report.compare(record, "segments", record["segments"], replay.segments())
    return report


def _normalized(result: dict[str, Any]) -> dict[str, Any]:
    result = {key: value for key, value in result.items() if key != "bases"}
    if "error" in result:
        result["error"] = _ERRORS.get(result["error"], result["error"].rpartition(".")[2])
    for key in ("message", "summary"):
        if key in result:
            result[key] = as_forebay_text(result[key])
    if "message" in result:
        result["message"] = result["message"].partition("\n")[0]  # forebay's text has more lines
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m support.golden.command",
        description="Replay golden traces and compare the results with PyTorch's allocator.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a trace, .jsonl or .jsonl.xz")
    parser.add_argument(
        "--model", action="store_true", help="replay on the reference model instead of the simulated device"
    )
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
    except BrokenPipeError:  # the reader closed the pipe; avoid a second error when stdout is flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
