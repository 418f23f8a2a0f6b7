"""Run everything that needs Apple's GPU: python3 dev.py mac [--quick] [--output FILE] [PART ...]
or update verified.toml from such a file: python3 dev.py mac --accept FILE

The parts are the conformance suite, the tests of torch.mps's names, random numbers beside the CPU device's, and
benchmarks, beside torch.mps if PyTorch is installed. Each is reported as ok, failed or not run with the reason. The
results are written to forebay-mac.md, to attach to an issue. --accept adds them to src/forebay/backends/verified.toml
if the run was complete, on hardware, and nothing failed. --quick uses few tests and repetitions, and it or a selection
of parts verifies nothing. On the stand-in of tests/softmetal a run is a rehearsal.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

from gpu.part import read_outcome
from gpu.parts import Part
from gpu.processes import python, run_process
from gpu.run import outcome_of
from steps import ROOT, fail

from mac import results
from mac.machine import find_machine

PARTS = (
    Part("conformance", "Conformance suite", 1800, package="mac"),
    Part("names", "Names of torch.mps", 1800, package="mac"),
    Part("random_numbers", "Random numbers beside the CPU device's", 900, package="mac"),
    Part("benchmarks", "Benchmarks", 900, package="mac"),
)
VERIFIED = ROOT / "src/forebay/backends/verified.toml"


def main(arguments: list[str]) -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        "dev.py mac", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("forebay-mac.md"))
    parser.add_argument("--accept", type=Path, metavar="FILE")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    options = parser.parse_args(arguments)
    if unknown := {*options.parts} - {*names}:
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(names)}")
    if options.accept is not None:
        return _accept(options.accept)
    os.environ.pop("FOREBAY_EMULATE", None)  # emulated devices are tested elsewhere

    import forebay

    if reason := forebay.why_not("mps"):
        fail(f"no GPU to test: {reason}")
    machine = find_machine()
    print(f"{machine.gpu}, {machine.system}{' (rehearsal)' if machine.software else ''}", flush=True)
    selected = [part for part in PARTS if part.name in (options.parts or names)]
    found = [_report(part, quick=options.quick) for part in selected]
    complete = len(selected) == len(PARTS) and not options.quick
    command = shlex.join(["python3", "dev.py", "mac", *arguments])
    run = results.Run(machine, dt.datetime.now().astimezone().date(), command, complete, found)
    options.output.write_text(run.page())
    print(f"written: {options.output}")
    return 0 if run.passed else 1


def _report(part: Part, *, quick: bool) -> results.PartResult:
    print(f"{part.title} ...", end=" ", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-mac-") as folder:
        command = python(f"mac.{part.name}", folder, f"{part.seconds}", *(["--quick"] if quick else []))
        log, variables = Path(folder) / "log.txt", {**os.environ, "PYTHONPATH": _paths()}
        ending = run_process(command, log, part.seconds + 1.0, folder=ROOT, variables=variables)
        outcome = outcome_of(ending, read_outcome(Path(folder)))
    seconds = time.monotonic() - start
    print(f"{outcome.status} after {seconds:.0f} s{': ' * bool(outcome.detail)}{outcome.detail}", flush=True)
    if outcome.status == "failed":
        print("\n".join(f"    {line}" for line in outcome.lines), flush=True)
    return results.PartResult(part.name, part.title, outcome.status, outcome.detail, tuple(outcome.lines), seconds)


def _paths() -> str:
    paths = [str(ROOT / "tools"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def _accept(file: Path) -> int:
    """Update verified.toml from the file of a run."""
    try:
        run = results.read(file.read_text())
        VERIFIED.write_text(results.with_entry(VERIFIED, run))
    except (OSError, ValueError) as error:
        fail(f"{file} verifies nothing: {error}")
    print(f"written: {VERIFIED.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
