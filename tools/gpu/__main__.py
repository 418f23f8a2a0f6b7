"""Run everything that needs a GPU: python3 dev.py gpu [--quick] [--output FOLDER] [PART ...]

The parts are the conformance suite, the recorded scenes of torch.cuda, random numbers and allocator statistics beside
PyTorch's, graphs, the exchange of memory with CuPy and PyTorch, and benchmarks. Each is reported as ok, failed or not
run with the reason. If no part failed and every required one ran, docs/benchmarks-gpu.md and an entry of
src/forebay/backends/verified.toml are written; with --output both go to that folder. --quick uses few repetitions, and
it or a selection of parts verifies nothing. On the software driver of tests/softcuda a run is a rehearsal: it needs
--output.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shlex
import sys
from pathlib import Path

from steps import ROOT, fail

from gpu import records
from gpu.card import Card, find_card
from gpu.parts import PARTS, Part, Result, run_part

PAGE = ROOT / "docs/benchmarks-gpu.md"
VERIFIED = ROOT / "src/forebay/backends/verified.toml"


def main(arguments: list[str]) -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        "dev.py gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    options = parser.parse_args(arguments)
    if unknown := {*options.parts} - {*names}:
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(names)}")
    os.environ.pop("FOREBAY_EMULATE", None)  # emulated devices are tested elsewhere

    import forebay

    if reason := forebay.why_not("cuda"):
        fail(f"no GPU to test: {reason}")
    card = find_card()
    if card.software and options.output is None:
        fail("this is the software driver, on which a run is only a rehearsal: give --output FOLDER for its results")
    print(f"{card.name}, driver {card.driver}{' (rehearsal)' if card.software else ''}", flush=True)
    selected = [part for part in PARTS if part.name in (options.parts or names)]
    results = [_report(part, quick=options.quick) for part in selected]
    complete = len(selected) == len(PARTS) and not options.quick
    _write(
        results, card, options.output, complete=complete, command=shlex.join(["python3", "dev.py", "gpu", *arguments])
    )
    return 0 if records.passed(results) else 1


def _report(part: Part, *, quick: bool) -> Result:
    print(f"{part.title} ...", end=" ", flush=True)
    result = run_part(part, quick=quick)
    outcome = result.outcome
    print(f"{outcome.status} after {result.seconds:.0f} s{': ' * bool(outcome.detail)}{outcome.detail}", flush=True)
    if outcome.status == "failed":
        print("\n".join(f"    {line}" for line in outcome.lines), flush=True)
    return result


def _write(results: list[Result], card: Card, output: Path | None, *, complete: bool, command: str) -> None:
    """Write the page and the entry of a run: to a folder, or to the repository if the run verifies the hardware."""
    today = dt.datetime.now().astimezone().date()
    verified = complete and records.passed(results) and not card.software
    text = records.page(results, card, today, command)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / PAGE.name).write_text(text)
        entry = records.entry(results, card, today)
        if not verified:
            why = "a rehearsal on the software driver" if card.software else "incomplete, or with failures"
            entry = f"# Nothing was verified: the run was {why}.\n" + "".join(
                f"# {line}\n" for line in entry.splitlines()
            )
        (output / VERIFIED.name).write_text(entry)
        print(f"written: {output / PAGE.name}, {output / VERIFIED.name}")
    elif verified:
        PAGE.write_text(text)
        VERIFIED.write_text(records.with_entry(VERIFIED, records.entry(results, card, today)))
        print(f"written: {PAGE.relative_to(ROOT)}, {VERIFIED.relative_to(ROOT)}")
    else:
        print("nothing was written: the run verifies the hardware only if it is complete and all required parts pass")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
