"""Compare what calls of operators allocated on a GPU with what emulated devices allocate for the same calls.

`python -m gpu.compare_workspaces FILE [--all] [--known TOML]` needs PyTorch and forebay. It reads workspaces.json of a
run, or a file of kept results, and prints a table by family and a line for each call that differs; with --all for each
call.

With --known, the names of the calls that differ are written into a TOML file, below the reasons that it gives for them.
A call that is not yet in the file gets the reason TO_EXAMINE. A test compares record, emulated device and this file, so
that neither a new difference nor one that has vanished goes unnoticed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.call_memory import Rows, measure, reset, sizes_of
from gpu.operator_calls import Call, Kit, catalogue

__all__ = [
    "TO_EXAMINE", "UNEQUAL", "Comparison", "compare", "emulated_like", "read", "read_known", "run_emulated",
    "table", "write_known",
]  # fmt: skip

STATES = ("equal", "other frees", "differs", "cannot run", "not recorded")
_NOT_EMULATED = {"layers": "the layers of cuDNN are not emulated: they would run cell by cell"}  # by operator
UNEQUAL = STATES[1:3]
TO_EXAMINE = "to be examined"
_UNIFIED = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"  # whether cuBLASLt uses the workspace of cuBLAS
_SEPARATE = (2, 11)  # version of PyTorch up to which it does not, by default
_SHOWN = 8  # sizes of a difference that are printed


@dataclass(frozen=True)
class Comparison:
    """A call, and how what an emulated device allocates for it compares with the record.

    The state is "equal"; "other frees" if the allocations are equal, but not when they are freed; "differs"; "cannot
    run" on an emulated device; or "not recorded", as PyTorch refused the call.
    """

    family: str
    name: str
    state: str
    detail: str = ""


def read(path: Path) -> dict[str, Any]:
    """Return the machine and the calls of a file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, Any] = content.get("workspaces", content)
    return {"machine": found.get("machine") or content["machine"], "calls": found["calls"]}


@contextmanager
def emulated_like(machine: Mapping[str, Any]) -> Iterator[None]:
    """Emulate the card of a record, without values, with the lifetime of workspaces of its version of PyTorch."""
    import forebay
    from forebay import profiles
    from forebay.interop.torch import patch
    from forebay.interop.torch.kernels import workspaces

    named = {profiles.load(each).properties["name"]: each for each in profiles.names("cuda")}
    if machine["name"] not in named:
        raise ValueError(f"there is no profile of {machine['name']}; there are those of {', '.join(sorted(named))}")
    major, minor = map(int, re.findall(r"\d+", machine["torch"])[:2])
    workspaces.set_lifetime("call" if (major, minor) >= (2, 15) else "process")
    unified = os.environ.get(_UNIFIED)
    if (major, minor) <= _SEPARATE and unified is None:
        os.environ[_UNIFIED] = "0"
    try:
        with forebay.emulate("cuda", profile=named[machine["name"]]), patch(mode="shapes"):
            yield
    finally:
        workspaces.set_lifetime(None)
        if unified is None:
            os.environ.pop(_UNIFIED, None)


def run_emulated(calls: Sequence[Call]) -> dict[str, dict[str, Any]]:
    """Return the records of calls on the emulated device, by their names."""
    import torch

    kit = Kit(torch, "cuda")
    found: dict[str, dict[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in calls:
            try:
                found[call.name] = measure(kit, call)
            except Exception as error:  # noqa: BLE001 -- what cannot run is a result
                found[call.name] = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
            reset(kit)
    return found


def compare(recorded: Mapping[str, Any]) -> list[Comparison]:
    """Run the calls of a record on an emulated device, and compare them."""
    known = {call.name: call for call in catalogue()}
    rows: list[dict[str, Any]] = recorded["calls"]
    wanted = [known[each["name"]] for each in rows if "error" not in each and each["name"] in known]
    emulated = {call.name: {"error": _NOT_EMULATED[call.operator]} for call in wanted if call.operator in _NOT_EMULATED}
    with emulated_like(recorded["machine"]):
        emulated |= run_emulated([call for call in wanted if call.operator not in _NOT_EMULATED])
    return [_compared(each, emulated.get(each["name"])) for each in rows]


def _compared(record: Mapping[str, Any], emulated: Mapping[str, Any] | None) -> Comparison:
    about = record["family"], record["name"]
    if "error" in record:
        return Comparison(*about, "not recorded", record["error"])
    if emulated is None:
        return Comparison(*about, "not recorded", "the catalogue has no such call any more")
    if "error" in emulated:
        return Comparison(*about, "cannot run", emulated["error"])
    found = [_difference(key, _rows(record, key), _rows(emulated, key)) for key in ("first", "second")]
    state, detail = max(found, key=lambda each: STATES.index(each[0]))
    return Comparison(*about, state, detail)


def _rows(record: Mapping[str, Any], key: str) -> Rows:
    """Return the allocations and frees, without the frees of memory that was allocated before the call.

    The thread of the backward pass frees what it holds last when it pleases: before the call returns, or later.
    """
    rows: Rows = (record[key] or record["first"])["rows"]
    return [row for row in rows if row is not None]


def _difference(key: str, recorded: Rows, emulated: Rows) -> tuple[str, str]:
    if recorded == emulated:
        return "equal", ""
    theirs, ours = sizes_of(recorded), sizes_of(emulated)
    if theirs == ours:
        return "other frees", f"{key} call: {recorded[: 3 * _SHOWN]}, emulated {emulated[: 3 * _SHOWN]}"
    missing, added = (Counter(theirs) - Counter(ours)), (Counter(ours) - Counter(theirs))
    parts = [f"{what} {_listed(each)}" for what, each in (("missing", missing), ("too many", added)) if each]
    return "differs", f"{key} call: " + (
        ", ".join(parts) or f"other order: {theirs[:_SHOWN]}, emulated {ours[:_SHOWN]}"
    )


def _listed(sizes: Counter[int]) -> str:
    shown = [f"{count} x {size}" if count > 1 else str(size) for size, count in sorted(sizes.items(), reverse=True)]
    return " + ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def table(compared: Sequence[Comparison]) -> list[str]:
    """Return a Markdown table of the states by family."""
    counts = Counter((each.family, each.state) for each in compared)
    lines = ["| calls of | " + " | ".join(STATES) + " |", "|---" * (len(STATES) + 1) + "|"]
    families = dict.fromkeys(each.family for each in compared)
    lines += [f"| {name} | " + " | ".join(str(counts[name, state]) for state in STATES) + " |" for name in families]
    totals = Counter(each.state for each in compared)
    return [*lines, "| all | " + " | ".join(str(totals[state]) for state in STATES) + " |"]


def read_known(path: Path) -> dict[str, list[str]]:
    """Return the names of the calls that are known to differ, by the reason."""
    if not path.exists():
        return {}
    tables: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("known", [])
    return {each["reason"]: each["calls"] for each in tables}


def write_known(path: Path, compared: Sequence[Comparison]) -> None:
    """Write the names of the calls that differ, with the reasons that the file has given so far."""
    reasons = {name: reason for reason, names in read_known(path).items() for name in names}
    found: dict[str, list[str]] = {}
    for each in compared:
        if each.state in UNEQUAL:
            found.setdefault(reasons.get(each.name, TO_EXAMINE), []).append(each.name)
    lines = []
    for reason in sorted(found):
        names = [f"    {json.dumps(name)},\n" for name in sorted(found[reason])]
        lines.append(f"[[known]]\nreason = {json.dumps(reason)}\ncalls = [\n{''.join(names)}]\n")
    path.write_text("\n".join(lines), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser("gpu.compare_workspaces", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--known", type=Path, metavar="TOML")
    options = parser.parse_args(arguments)
    compared = compare(read(options.file))
    if options.known is not None:
        write_known(options.known, compared)
    shown = [each for each in compared if options.all or each.state not in ("equal", "not recorded")]
    lines = [*table(compared), "", *(f"* {each.name}: {each.state} {each.detail}".rstrip() for each in shown)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
