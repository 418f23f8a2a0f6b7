"""Check the installation and the devices, and suggest fixes. The exit status is 1 if a check fails.

Each check runs in its own process, so that checks do not affect each other, and crashes and timeouts are reported.
If the compiled core cannot be loaded, the other checks are skipped.

On each device that is not emulated, a check allocates memory, copies data there and back, waits for an event, and frees
the memory. For kinds without a device, the reason is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from forebay._base.suggestions import did_you_mean
from forebay.commands import CommandError, command_output
from forebay.commands.checks import CHECKS, REPORT, Check
from forebay.commands.device_checks import FIND_DEVICES, PREFIX, device_check

LIMIT = 60.0  # seconds for one check; each normally takes less than one
KILL_LIMIT = 2.0  # seconds for its end after that: a process that waits inside a driver may not end
FINDS_DEVICES = "devices"  # name of the check that fails if the list of the devices cannot be made


class Outcome(NamedTuple):
    """The end of a check: its name, whether it passed or None if it was not run, its message, and a remedy."""

    name: str
    passed: bool | None
    message: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", metavar="NAME", help="run one check in this process, with a traceback if it fails")
    parser.add_argument("--no-devices", action="store_true", help="leave out the checks that use each device")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print failed checks only")


def run(args: argparse.Namespace) -> int:
    with command_output():
        if args.check is not None:
            return _run_one(args.check)
        outcomes = _outcomes(with_devices=not args.no_devices)
        return _print_json(outcomes) if args.json else _print(outcomes, quiet=args.quiet)


def _run_one(name: str) -> int:
    for check in CHECKS:
        if check.name == name:
            print(check.probe())
            return 0
    if name.startswith(PREFIX):
        print(device_check(name.removeprefix(PREFIX)).probe())
        return 0
    hint = did_you_mean(name, [check.name for check in CHECKS])
    names = ", ".join(repr(check.name) for check in CHECKS)
    raise CommandError(f"unknown check {name!r}; choose from {names} and '{PREFIX}NAME'{hint}")


def _print_json(outcomes: Iterator[Outcome]) -> int:
    found: list[dict[str, object]] = []
    for name, passed, message, remedy in outcomes:
        found.append({"check": name, "passed": passed, "message": message, "remedy": remedy or None})
    failed = sum(each["passed"] is False for each in found)
    print(json.dumps({"passed": not failed, "failed": failed, "checks": found}, indent=2))
    return 1 if failed else 0


def _print(outcomes: Iterator[Outcome], *, quiet: bool) -> int:
    passed = failed = skipped = 0
    width = max(len(check.name) for check in CHECKS)
    marks = dict(zip((True, False, None), _marks(), strict=True))
    for outcome in outcomes:
        passed += outcome.passed is True
        failed += outcome.passed is False
        skipped += outcome.passed is None and not outcome.name.startswith(PREFIX)
        if quiet and outcome.passed is not False:
            continue
        print(f"{marks[outcome.passed]} {outcome.name:{width}}  {outcome.message}", flush=True)
        if outcome.passed is False:
            indent = " " * (width + 2 + len(marks[False]) + 1)
            more = f"\n{indent}more: forebay doctor --check '{outcome.name}'" if outcome.name != FINDS_DEVICES else ""
            print(f"{indent}{outcome.remedy}{more}", flush=True)
    if quiet and not failed:
        return 0
    print()
    total, not_run = passed + failed + skipped, f", {skipped} not run" if skipped else ""
    print(f"{failed} of {total} checks failed{not_run}" if failed else f"All {total} checks passed.")
    return 1 if failed else 0


def _outcomes(*, with_devices: bool) -> Iterator[Outcome]:
    """Run all checks, and yield their outcomes in order."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        core, *others = CHECKS
        outcome = _run_check(core)
        yield outcome
        if not outcome.passed:
            for check in others:
                yield Outcome(check.name, None, f"not run, as it needs the {core.name}")
            return
        finding = pool.submit(_find_devices) if with_devices else None
        yield from pool.map(_run_check, others)
        if finding is not None:
            devices, rest = finding.result()
            yield from pool.map(_run_check, [device_check(name) for name in devices])
            yield from rest


def _find_devices() -> tuple[list[str], list[Outcome]]:
    """Return the names of the devices to check, and an outcome for each kind without one or for a failure."""
    passed, message = _run_child("-c", FIND_DEVICES)
    if not passed:
        return [], [Outcome(FINDS_DEVICES, False, message, REPORT)]
    found = json.loads(message)
    missing = [Outcome(f"{PREFIX}{kind}", None, f"none: {reason}") for kind, reason in found["missing"].items()]
    return found["devices"], missing


def _run_check(check: Check) -> Outcome:
    """Run a check in a child process."""
    passed, message = _run_child("-m", "forebay", "doctor", "--check", check.name)
    return Outcome(check.name, passed, message, "" if passed else check.what_to_do(message))


def _run_child(*arguments: str) -> tuple[bool, str]:
    """Run this forebay in a child process. Return whether it succeeded, and its last line or how it ended."""
    package_root = str(Path(__file__).parents[2])  # of the running forebay, installed or not
    paths = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", *arguments]  # -P: a numpy.py or forebay/ in the working directory is not imported
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
    try:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        return False, f"cannot start {sys.executable}: {error.strerror}"
    try:
        output, errors = child.communicate(timeout=LIMIT)
    except BaseException as error:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=KILL_LIMIT)
        if isinstance(error, subprocess.TimeoutExpired):
            return False, f"not finished after {LIMIT:g} s"
        raise
    if child.returncode < 0:
        return False, f"killed by {signal.Signals(-child.returncode).name}"
    if child.returncode == 0:
        return True, output.strip().rpartition("\n")[2]
    lines = [line for line in errors.splitlines() if line.strip()]
    messages = (line for line in lines if not line[0].isspace() and not line.startswith("Traceback"))
    return False, next(messages, f"exited with status {child.returncode}")  # first line of the error message


def _marks() -> tuple[str, str, str]:
    try:
        "✓✗".encode(sys.stdout.encoding)
    except (UnicodeEncodeError, LookupError, AttributeError, TypeError):
        return "ok    ", "FAILED", "-     "
    return "✓", "✗", "-"
