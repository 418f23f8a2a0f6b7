"""Write the JSON schemas of the output of `forebay COMMAND --json` to docs/reference, from the types in the code.

The schema of a dataclass has its fields, with their comments or the texts of its section Parameters. What a command
adds to a dataclass, or builds by hand, is described below. The schema of `forebay run` is written by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from schema_builder import Builder, Object, Optional, Record, Schema, Several

from forebay._base.kernel_checks import KernelCheck
from forebay._base.outside_memory import OutsideMemory
from forebay._base.verdicts import Assumption
from forebay.interop.torch.fit.results import FitResult
from forebay.observe.monitor.figures import DeviceFigures
from forebay.observe.monitor.machine import MachineFigures
from forebay.snapshot.analysis.comparison import Comparison
from forebay.snapshot.analysis.growth import Growth, SiteGrowth
from forebay.snapshot.analysis.other_devices import OtherDevice
from forebay.snapshot.analysis.ranks import Ranks
from forebay.snapshot.replay.engine import Outcome
from forebay.snapshot.replay.lower_bounds import Bounds, Packing
from forebay.snapshot.replay.program_advice import WhatIf
from forebay.snapshot.replay.remedies import Remedies
from forebay.snapshot.replay.verify import Check
from forebay.snapshot.report.explanation import Chosen, Explanation
from forebay.snapshot.report.selection import Selection
from forebay.spi.properties import DeviceProps

FOLDER = Path(__file__).parents[1] / "docs/reference"
_ADDED = "Further keys may be added."

_BYTES = {"type": "integer", "minimum": 0}
_COUNT = _BYTES
_TEXT = str
_DEVICE = Object(
    "DeviceFigures",
    {
        "device": (str, "the device"),
        "entries": (_COUNT, "length of the history"),
        "lost_entries": (_COUNT, "entries that the ring buffer dropped"),
        "peak_bytes": (_BYTES, "most bytes of live blocks, as the program requested them, during the history"),
        "peak_ever_bytes": (_BYTES, "the same since the statistics were reset"),
        "current_bytes": (_BYTES, "bytes of live blocks at the end"),
        "reserved_bytes": (_BYTES, "bytes in segments at the end"),
        "peak_reserved_bytes": (_BYTES, "most bytes in segments"),
        "largest_free_bytes": (_BYTES, "the largest free block"),
        "allocations": (_COUNT, "allocations, from the statistics or else the history"),
        "frees": (_COUNT, "frees, from the statistics or else the history"),
        "span_ns": (_COUNT, "nanoseconds that the history spans"),
        "fragmentation": (float, "1 less the largest free block in relation to all free bytes in segments"),
        "peak_moment": (_COUNT, "number of entries after which the peak was reached"),
        "out_of_memory": (
            Several(
                Object(
                    "OutOfMemory",
                    {
                        "moment": (_COUNT, "number of entries after which memory had run out"),
                        "time_ns": (int, "Unix time in nanoseconds"),
                        "requested_bytes": _BYTES,
                        "site": (str, "the allocation site"),
                    },
                )
            ),
            "out-of-memory events, oldest first",
        ),
        "moment": (_COUNT, "number of entries after which the sites are listed"),
        "sites": (
            Several(
                Object(
                    "Site",
                    {
                        "site": (str, "the allocation site"),
                        "library": (str, "the line of a library that it calls, or empty"),
                        "live_bytes": _BYTES,
                        "blocks": (_COUNT, "number of live blocks"),
                        "largest_bytes": (_BYTES, "the largest live block"),
                        "share": (float, "fraction of all live bytes"),
                    },
                )
            ),
            "live memory by site, most first",
        ),
        "other_sites": (_COUNT, "further sites that are not listed"),
        "timeline": (
            Several(
                Object(
                    "Point",
                    {"moment": _COUNT, "time_ns": int, "allocated_bytes": _BYTES, "reserved_bytes": _BYTES},
                )
            ),
            "of equal parts of the history, the moment with the most allocated bytes",
        ),
    },
)
_OUTCOME = Record(Outcome, replace={"ran_out": (int | None, "the entry that ended the replay; null if none did")})
_GROWTH = Record(
    Growth,
    drop=("steps",),
    replace={
        "repetitions": (_COUNT, "number of the steps"),
        "allocations": (_COUNT, "allocations of a step"),
        "exact": (bool, "whether all steps allocate alike"),
        "moments": (Several(int), "beginnings of the steps, and the end of the last one"),
        "steady": (bool, "whether memory grows in most of the steps"),
        "sites": Several(Record(SiteGrowth, replace={"leaks": (bool, "whether none of its allocations was freed")})),
    },
)
_WHAT_IF = Several(Record(WhatIf, replace={"text": (str, "the changes as --what-if reads them")}))
_EXPLANATION = Record(
    Explanation,
    replace={
        "others": Several(Record(OtherDevice, replace={"unused": (int | None, "bytes without live blocks")})),
        "growth": Optional(_GROWTH),
        "chosen": Optional(Record(Chosen, replace={"selection": Record(Selection)})),
        "remedies": Optional(
            Record(
                Remedies,
                replace={
                    "exact": (bool, "whether the replay with the recorded settings reproduces the recording"),
                    "proved": (bool, "whether it runs out of memory as recorded"),
                },
            )
        ),
        "what_if": Optional(
            Object(
                "Advice",
                {
                    "memory": (int | None, "bytes that the replays could reserve; null if unlimited"),
                    "baseline": (Outcome, "the outcome of the unchanged program"),
                    "replays": (_COUNT, "replays of the search for suggestions"),
                    "cut": (bool, "whether the search ended at its limit"),
                    "asked": (_WHAT_IF, "what was asked for"),
                    "suggested": (_WHAT_IF, "changes with which memory suffices, the smallest first"),
                    "movable": (_WHAT_IF, "sites that another device has room for, the smallest first"),
                },
            )
        ),
    },
)
_TRIAL = Object(
    "Trial",
    {
        "settings": (str, "the allocator settings"),
        "environment": (str, "the variable that selects them"),
        "peak_reserved": (_BYTES, "most bytes in segments, of all histories"),
        "device_calls": (_COUNT, "calls that allocated or freed device memory"),
        "failures": (_COUNT, "requests that ran out of memory"),
        "outcomes": (Several(Outcome), "the outcome of each history"),
    },
)
_TUNING = Object(
    "Tuning",
    {
        "events": (_COUNT, "allocations and frees of one trial"),
        "memory": (Several(int | None), "bytes that each history could reserve; null if unlimited"),
        "least": (_BYTES, "bytes that every setting must reserve"),
        "packing": (
            Record(Packing, replace={"whole": (bool, "whether it holds all blocks")}, name="LargestPacking"),
            "the largest arrangement of blocks",
        ),
        "missing": (int, "bytes by which the memory is too small for all settings; 0 if it may suffice"),
        "bounds": (Several(Bounds), "bounds of each history"),
        "error": (_BYTES, "difference of the recorded and the replayed peak of reserved memory"),
        "recorded": (_TRIAL, "the recorded settings"),
        "trials": (Several(_TRIAL), "other settings, the best first"),
        "best": (_TRIAL, "the best of all"),
    },
)
_REPLAY = Object(
    "Replay",
    {
        "device": str,
        "entries": (_COUNT, "length of the history"),
        "events": (_COUNT, "allocations and frees"),
        "lost": (_COUNT, "entries that the ring buffer dropped"),
        "settings": (str | None, "settings of the recording; null if the file does not contain them"),
        "memory": (int | None, "memory of the device; null if unlimited or unknown"),
        "peak_allocated": (_BYTES, "recorded maximum of the bytes in live blocks"),
        "peak_reserved": (_BYTES, "recorded maximum of the bytes in segments"),
        "device_allocs": (_COUNT, "recorded calls that allocated device memory"),
        "device_frees": (_COUNT, "recorded calls that freed device memory"),
        "check": (Optional(Check), "result of --check"),
        "replays": (Several(_OUTCOME), "with the recorded settings, and each of --settings"),
    },
)
_FILE = {
    "file": (str, "the snapshot file"),
    "name": (str, "the device as the page names it"),
}
_REPORT = Object(
    "Report",
    {
        "page": (str, "the page that was written"),
        "devices": Several(Object("ReportedDevice", {**_FILE, "figures": _DEVICE})),
    },
)
_CONVERTED = Several(
    Object(
        "Converted",
        {
            "file": (str, "the file that was written"),
            "format": str,
            "devices": Several(
                Object("ConvertedDevice", {"device": str, "entries": (_COUNT, "length of its history")})
            ),
        },
    )
)
_INFO_DEVICE = Record(
    DeviceProps,
    replace={
        "free_bytes": _BYTES,
        "capability": (str | None, "compute capability of CUDA"),
        "profile": (str | None, "name of the profile of an emulated card"),
        "guarded": (bool, "whether wrong accesses of an emulated device are found"),
        "error": (str | None, "why the device could not be opened"),
        "details": dict[str, object],
    },
)
_INFO = Object(
    "Information",
    {
        "versions": dict[str, str],
        "devices": (
            Several(
                {
                    "anyOf": [
                        {"$ref": "#/$defs/DeviceProps"},
                        {
                            "type": "object",
                            "properties": {"kind": {"type": "string"}, "index": _COUNT, "error": {"type": "string"}},
                            "required": ["kind", "index", "error"],
                        },
                    ]
                }
            ),
            "a device that could not be opened has the error only",
        ),
        "missing": (dict[str, str], "the reason for each missing kind of device"),
    },
)
_ABILITIES = Object(
    "Abilities",
    {
        "kinds": Several(
            Object(
                "Kind",
                {
                    "kind": str, "name": str, "emulated": bool, "abilities": list[str],
                    "verified_on": (list[str], "hardware"), "error": str | None,
                },
            )
        ),
        "abilities": Several(Object("Ability", {"name": str, "of": (str, "the protocol"), "meaning": str})),
    },
)  # fmt: skip
_DOCTOR = Object(
    "Doctor",
    {
        "passed": (bool, "whether no check failed"),
        "failed": (_COUNT, "number of the checks that failed"),
        "checks": Several(
            Object(
                "Check",
                {
                    "check": (str, "its name"), "passed": (bool | None, "null if it was not run"), "message": str,
                    "remedy": (str | None, "what to do if it failed"),
                },
            )
        ),
    },
)  # fmt: skip
_OUTSIDE = Record(OutsideMemory)
_FIT = Record(
    FitResult,
    replace={
        "assumptions": Several(Record(Assumption)),
        "choices": {"type": ["object", "null"]},
        "outside": _OUTSIDE,
        "in_use": (_OUTSIDE, "bytes of the card in use at the peak"),
        "workspaces": _OUTSIDE,
        "fits": (bool, "whether the program fits"),
        "versions": (
            Object("Versions", {"torch": str, "cuda": (str, "of the emulated devices"), "warnings": list[str]}),
            "for which the result is valid",
        ),
        "parameters": dict[str, object],
        "kernels": Optional(
            Several(Record(KernelCheck, replace={"too_large": (bool, "whether it needs more shared memory")}))
        ),
    },
)
_ANSWERS = Several(
    Object(
        "Answer",
        {
            "profile": (str, "name of the card's profile"),
            "given": (dict[str, str], "the values of the arguments with listed values"),
            "argument": (str, "the argument that was searched"),
            "largest": (int | None, "its largest value with which the program fits; null if there is none"),
            "why": (str, "why a larger value is no answer"),
            "remark": (str, "what would help with a larger value, or what went wrong; empty for nothing"),
            "values": (Several(int), "the values that ran"),
            "verdict": (str | None, "with the largest value, as the following fields"),
            "peak_allocated": int | None,
            "peak_reserved": int | None,
            "in_use": (Optional(_OUTSIDE), "bytes of the card in use at the peak"),
            "capacity": (int | None, "memory of the card"),
        },
    )
)
_SMALLEST = Object(
    "Smallest",
    {
        "card": (str | None, "the smallest card on which the program fits, or the cheapest one; null if there is none"),
        "fitting": (list[str], "the cards on which it fits, in this order"),
    },
)
_TOP = Record(
    MachineFigures,
    replace={"failures": (dict[str, str], "the reason for each process that did not reply")},
)
#: The root of each schema, by name of the file.
SCHEMAS: dict[str, tuple[str, Any]] = {
    "convert": ("forebay convert --json", _CONVERTED),
    "diff": ("forebay diff --json", Several(Comparison)),
    "doctor": ("forebay doctor --json", _DOCTOR),
    "explain": ("forebay explain --json: the devices", Several(_EXPLANATION)),
    "fit": ("forebay fit --json: the cards", Several(_FIT)),
    "fit-solve": ("forebay fit --solve NAME=LEAST..MOST --json", _ANSWERS),
    "fit-solve-card": ("forebay fit --solve card --json", _SMALLEST),
    "info": ("forebay info --json", _INFO),
    "info-abilities": ("forebay info --abilities --json", _ABILITIES),
    "ranks": ("forebay ranks --json", Record(Ranks, replace={"skew": (float, "highest peak divided by their mean")})),
    "replay": ("forebay replay --json: the devices", Several(_REPLAY)),
    "report": ("forebay report --json", _REPORT),
    "top": ("forebay top --json", _TOP),
    "tune": ("forebay tune --json", _TUNING),
    "view": ("forebay view --json: the devices", Several(_DEVICE)),
}
_ALSO = {"info": [_INFO_DEVICE]}  # what a schema refers to by name


def schema_of(name: str) -> Schema:
    """Return the schema of the output of a command."""
    title, root = SCHEMAS[name]
    builder = Builder()
    for kind in _ALSO.get(name, []):
        builder.schema(kind)
    made = builder.schema(root)
    if name == "top":
        del builder.definitions[DeviceFigures.__name__]["properties"]["stacks"]
        builder.definitions[DeviceFigures.__name__]["required"].remove("stacks")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, "description": f"Sizes are in bytes. {_ADDED}", **made, "$defs": builder.definitions}


def text_of(name: str) -> str:
    """Return the file of a schema."""
    return json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all files."""
    for name in SCHEMAS:
        FOLDER.joinpath(f"{name}.schema.json").write_text(text_of(name), "utf-8")
        print(f"docs/reference/{name}.schema.json", file=sys.stderr)


if __name__ == "__main__":
    main()
