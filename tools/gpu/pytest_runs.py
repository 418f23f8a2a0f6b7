"""Runs of pytest inside a part."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["TestRun", "run_tests"]

_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|xfailed|xpassed)")
_TAIL = 30  # lines


@dataclass
class TestRun:
    """Result of a run of pytest: its exit status and counts."""

    status: int = 0  # of the process; None would be a timeout, which is reported as failed
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    output: str = ""

    def problems(self) -> list[str]:
        """Return the tests that failed, or the end of the output of a run that did not end normally."""
        if self.failed or not self.status:
            return [f"* {name}" for name in self.failed]
        return ["```text", *self.output.splitlines()[-_TAIL:], "```"]


def run_tests(arguments: Sequence[str], folder: Path, seconds: float) -> TestRun:
    """Run pytest in a folder, at most for some time."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-rfE", "--tb=short"]
    command += ["--disable-warnings", "-p", "no:cacheprovider", "--timeout=120", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode(errors="replace") if isinstance(expired.stdout, bytes) else ""
        return TestRun(-1, Counter(), [], f"{output}\nstopped after {seconds:.0f} s")
    last = done.stdout.strip().rpartition("\n")[2]
    counts = Counter({name: int(number) for number, name in _COUNT.findall(last)})
    failed = re.findall(r"^(?:FAILED|ERROR) (?:.*::)?(.+)$", done.stdout, re.MULTILINE)
    return TestRun(done.returncode, counts, failed, done.stdout)
