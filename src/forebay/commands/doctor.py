"""Check the installation, and say what to do about what is wrong. The exit status is 1 if anything is.

Each check runs in a process of its own: none disturbs another, and one that crashes or hangs is told of as well.
Where the compiled core does not load, it says so and what to do, and the checks that need it are not run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from forebay.commands import Failure, showing
from forebay.commands.checks import CHECKS, Check

LIMIT = 60.0  # seconds for one check; each takes less than one


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", metavar="NAME", help="one check alone, in this process: shows where it fails")


def run(args: argparse.Namespace) -> int:
    with showing():
        return _all() if args.check is None else _one(args.check)


def _one(name: str) -> int:
    for check in CHECKS:
        if check.name == name:
            print(check.probe())
            return 0
    raise Failure(f"there is no check {name!r}; there are {', '.join(repr(check.name) for check in CHECKS)}")


def _all() -> int:
    failed = skipped = 0
    wide = max(len(check.name) for check in CHECKS)
    good, bad, none = _marks()
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for check, outcome in zip(CHECKS, _outcomes(pool), strict=True):
            if outcome is None:
                skipped += 1
                print(f"{none} {check.name:{wide}}  not run, as it needs the {CHECKS[0].name}", flush=True)
                continue
            passed, said = outcome
            print(f"{good if passed else bad} {check.name:{wide}}  {said}", flush=True)
            if not passed:
                failed += 1
                indent = " " * (wide + 2 + len(bad) + 1)
                cure = check.what_to_do(said)
                print(f"{indent}{cure}\n{indent}more: forebay doctor --check '{check.name}'", flush=True)
    print()
    not_run = f", {skipped} not run" if skipped else ""
    print(f"{failed} of {len(CHECKS)} checks failed{not_run}" if failed else f"All {len(CHECKS)} checks passed.")
    return 1 if failed else 0


def _outcomes(pool: Executor) -> Iterator[tuple[bool, str] | None]:
    """Of every check, in order; None of those that were not run."""
    core, *others = CHECKS
    outcome = _examine(core)
    yield outcome
    yield from pool.map(_examine, others) if outcome[0] else [None] * len(others)


def _examine(check: Check) -> tuple[bool, str]:
    """Whether it passed, and what it said or what became of it."""
    home = str(Path(__file__).parents[2])  # where this very forebay is, installed or not
    paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    # -P: a numpy.py or forebay/ in the working directory must not be taken for the real one.
    command = [sys.executable, "-P", "-m", "forebay", "doctor", "--check", check.name]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"still not done after {LIMIT:g} s"
    except OSError as error:
        return False, f"cannot start {sys.executable}: {error.strerror}"
    if done.returncode < 0:
        return False, f"died of {signal.Signals(-done.returncode).name}"
    if done.returncode == 0:
        return True, done.stdout.strip().rpartition("\n")[2]
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    said = (line for line in lines if not line[0].isspace() and not line.startswith("Traceback"))
    return False, next(said, f"ended with status {done.returncode}")  # the first line of the error's own


def _marks() -> tuple[str, str, str]:
    try:
        "✓✗".encode(sys.stdout.encoding)
    except (UnicodeEncodeError, LookupError, AttributeError, TypeError):
        return "ok    ", "FAILED", "-     "
    return "✓", "✗", "-"
