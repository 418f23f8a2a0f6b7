"""Runs of pytest inside a part."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu.part import Outcome

__all__ = ["TestRun", "run_tests"]

_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|xfailed|xpassed)")
_ENDED = re.compile(r" (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b")
_NAMES = {"ERROR": "error", "XFAIL": "xfailed", "XPASS": "xpassed"}
_TAIL = 30  # lines


@dataclass
class TestRun:
    """Result of a run of pytest: its exit status and counts."""

    status: int = 0  # of the process
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    output: str = ""
    late: str = ""  # the limit at which it was stopped, in words

    def problems(self) -> list[str]:
        """Return the tests that failed, or the end of the output of a run that did not end normally."""
        if self.failed or not self.status:
            return [f"* {name}" for name in self.failed]
        return ["```text", *self.output.splitlines()[-_TAIL:], "```"]

    def outcome(self, notes: Sequence[str] = ()) -> Outcome:
        """Return the outcome of a part that is this run."""
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items()) or "no test ran"
        if self.late and not self.failed and self.counts["passed"]:
            return Outcome("incomplete", f"{counts}; {self.late}", [*notes])
        passed = self.status == 0 and self.counts["passed"] > 0
        detail = f"{counts}; {self.late}" if self.late else counts
        return Outcome("ok" if passed else "failed", detail, [*([] if passed else self.problems()), *notes])


def run_tests(arguments: Sequence[str], folder: Path, seconds: float) -> TestRun:
    """Run pytest in a folder, at most for some time."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-v", "-rfE", "--tb=short"]
    command += ["--disable-warnings", "-p", "no:cacheprovider", "--timeout=120", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=max(seconds, 0.1),
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode(errors="replace") if isinstance(expired.stdout, bytes) else ""
        ended = Counter(_NAMES.get(each, each.lower()) for each in _ENDED.findall(output))
        failed = re.findall(r"^(?:.*::)?(\S+) (?:FAILED|ERROR)\b", output, re.MULTILINE)
        return TestRun(-1, ended, failed, output, f"stopped after {seconds:.0f} s")
    last = done.stdout.strip().rpartition("\n")[2]
    counts = Counter({name: int(number) for number, name in _COUNT.findall(last)})
    failed = re.findall(r"^(?:FAILED|ERROR) (?:.*::)?(.+)$", done.stdout, re.MULTILINE)
    return TestRun(done.returncode, counts, failed, done.stdout)
