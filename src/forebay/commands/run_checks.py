"""`forebay run --check-assumptions`: runs of the program with opposite values, after the one that is reported."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.assumption_checks import AssumptionCheck
from forebay._base.atomic_write import atomic_write
from forebay._base.verdicts import Assumption, Verdict
from forebay.commands.assumption_list import print_check
from forebay.commands.assumption_options import chosen_assumptions
from forebay.commands.programs import argv_of, python_arguments
from forebay.commands.run_output import SUMMARY
from forebay.commands.site_options import chosen_sites
from forebay.commands.terminal import Terminal

if TYPE_CHECKING:
    from forebay.interop.torch.fit.tasks import FitTask

__all__ = ["check_run"]

_OWN = ("FOREBAY_REHEARSAL_OUTPUT", "FOREBAY_REHEARSAL_RECORDS")  # of the run before


def check_run(args: argparse.Namespace, folder: Path) -> None:
    """Run the program of a report again, print what was found, and add it to the summary of the report."""
    from forebay.commands.run_page import add_check
    from forebay.snapshot.formats.native import BadSnapshot

    summary = _read(folder / SUMMARY)
    if summary is None:  # it has no report, and the reason was printed
        return
    check = _check(args, summary)
    summary["assumption_check"] = check.as_json()
    with suppress(OSError), atomic_write(folder / SUMMARY) as file:  # what is printed says the same
        file.write(f"{json.dumps(summary, indent=2)}\n".encode())
    with suppress(OSError, BadSnapshot):  # as above
        add_check(folder, summary.get("children") or [], [*check.sentences()], chosen_sites(args))
    if args.json:
        if not args.quiet:
            print(json.dumps(summary), file=sys.stderr, flush=True)
    elif not args.quiet:
        print_check(Terminal().console(), check)


def _check(args: argparse.Namespace, summary: Mapping[str, Any]) -> AssumptionCheck:
    from forebay.interop.torch.fit.tasks import check_task

    if "verdict" not in summary:
        return AssumptionCheck(None, reason="the program did not use PyTorch")
    if summary["verdict"] in (Verdict.DID_NOT_FINISH, Verdict.DOES_NOT_FIT):
        return AssumptionCheck(None, reason=f"the program {_ENDS[summary['verdict']]}")
    peaks = {each["index"]: (each["peak_allocated"], each["peak_reserved"]) for each in summary["torch"]}
    for name in _OWN:
        os.environ.pop(name, None)
    assumptions = [Assumption(**each) for each in summary["assumptions"]]
    return check_task(_task(args), peaks, assumptions, float(summary.get("seconds", 0.0)))


_ENDS = {Verdict.DID_NOT_FINISH: "did not finish", Verdict.DOES_NOT_FIT: "does not fit: --memory gives it more"}


def _task(args: argparse.Namespace) -> FitTask:
    from forebay.interop.torch.fit.tasks import FitTask

    device = next(each for each in args.emulate if each.kind == "cuda")
    return FitTask(
        device.profile, "shapes", device.count, args.memory or device.memory, reserve=args.reserve,
        timeout=args.max_seconds, script=python_arguments(*argv_of(args, "run")), folder=str(Path.cwd()),
        assumptions=chosen_assumptions(args, "shapes"),
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
