"""Check the installation and suggest fixes. The exit status is 1 if a check fails.

Each check runs in its own process, so that checks do not affect each other, and crashes and timeouts are reported.
If the compiled core cannot be loaded, the other checks are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from forebay.commands import CommandError, command_output
from forebay.commands.checks import CHECKS, Check
from forebay.suggestions import did_you_mean

LIMIT = 60.0  # seconds for one check; each normally takes less than one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", metavar="NAME", help="run one check in this process, with a traceback if it fails")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print failed checks only")


def run(args: argparse.Namespace) -> int:
    with command_output():
        if args.check is not None:
            return _run_one(args.check)
        return _run_all_as_json() if args.json else _run_all(quiet=args.quiet)


def _run_one(name: str) -> int:
    for check in CHECKS:
        if check.name == name:
            print(check.probe())
            return 0
    hint = did_you_mean(name, [check.name for check in CHECKS])
    raise CommandError(f"unknown check {name!r}; choose from {', '.join(repr(check.name) for check in CHECKS)}{hint}")


def _run_all_as_json() -> int:
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        outcomes = list(_outcomes(pool))
    found: list[dict[str, object]] = []
    for check, outcome in zip(CHECKS, outcomes, strict=True):
        passed, message = outcome or (None, f"not run, as it needs the {CHECKS[0].name}")
        remedy = check.what_to_do(message) if passed is False else None
        found.append({"check": check.name, "passed": passed, "message": message, "remedy": remedy})
    failed = sum(each["passed"] is False for each in found)
    print(json.dumps({"passed": not failed, "failed": failed, "checks": found}, indent=2))
    return 1 if failed else 0


def _run_all(*, quiet: bool = False) -> int:
    failed = skipped = 0
    width = max(len(check.name) for check in CHECKS)
    good, bad, skip = _marks()
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for check, outcome in zip(CHECKS, _outcomes(pool), strict=True):
            if outcome is None:
                skipped += 1
                if quiet:
                    continue
                print(f"{skip} {check.name:{width}}  not run, as it needs the {CHECKS[0].name}", flush=True)
                continue
            passed, message = outcome
            if passed and quiet:
                continue
            print(f"{good if passed else bad} {check.name:{width}}  {message}", flush=True)
            if not passed:
                failed += 1
                indent = " " * (width + 2 + len(bad) + 1)
                remedy = check.what_to_do(message)
                print(f"{indent}{remedy}\n{indent}more: forebay doctor --check '{check.name}'", flush=True)
    if quiet and not failed:
        return 0
    print()
    not_run = f", {skipped} not run" if skipped else ""
    print(f"{failed} of {len(CHECKS)} checks failed{not_run}" if failed else f"All {len(CHECKS)} checks passed.")
    return 1 if failed else 0


def _outcomes(pool: Executor) -> Iterator[tuple[bool, str] | None]:
    """Yield the outcome of each check, in order; None for those that were not run."""
    core, *others = CHECKS
    outcome = _run_check(core)
    yield outcome
    yield from pool.map(_run_check, others) if outcome[0] else [None] * len(others)


def _run_check(check: Check) -> tuple[bool, str]:
    """Run a check in a child process. Returns whether it passed, and its message or how the process ended."""
    package_root = str(Path(__file__).parents[2])  # of the running forebay, installed or not
    paths = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # -P: a numpy.py or forebay/ in the working directory must not be imported.
    command = [sys.executable, "-P", "-m", "forebay", "doctor", "--check", check.name]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"not finished after {LIMIT:g} s"
    except OSError as error:
        return False, f"cannot start {sys.executable}: {error.strerror}"
    if done.returncode < 0:
        return False, f"killed by {signal.Signals(-done.returncode).name}"
    if done.returncode == 0:
        return True, done.stdout.strip().rpartition("\n")[2]
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    messages = (line for line in lines if not line[0].isspace() and not line.startswith("Traceback"))
    return False, next(messages, f"exited with status {done.returncode}")  # first line of the error message


def _marks() -> tuple[str, str, str]:
    try:
        "✓✗".encode(sys.stdout.encoding)
    except (UnicodeEncodeError, LookupError, AttributeError, TypeError):
        return "ok    ", "FAILED", "-     "
    return "✓", "✗", "-"
