"""Runs of pytest inside a part.

# Note [Tests that end their process]
On hardware a test may end its process, hang in the driver, or leave the context in a state in which every later call
fails. One worker of pytest-xdist runs the tests, so that a test that ends it is named and the next worker goes on, and
a hanging test is ended by its limit in the same way. After an error that is fatal for the context the worker ends
itself (`gpu.fatal_errors`). The output goes to a file while the tests run, so that it survives the end of the part.
Test: tests/house/test_gpu_task.py::test_rehearsal_runs_to_its_end_and_verifies_nothing
"""

from __future__ import annotations

import os
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
_ENDED = re.compile(r"^\[gw\d+\].*? (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS) (?:\S*::)?(.*?)\s*$", re.MULTILINE)
_NAMES = {"ERROR": "error", "XFAIL": "xfailed", "XPASS": "xpassed"}
_TAIL = 30  # lines
_TEST_SECONDS = 20  # limit of a test
_PLUGINS = ("pytest_timeout", "xdist.plugin", "gpu.fatal_errors")  # no others, whose warnings would be errors here


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


def run_tests(arguments: Sequence[str], folder: Path, seconds: float, log: Path) -> TestRun:
    """Run pytest in a folder, at most for some time. See Note [Tests that end their process].

    Parameters
    ----------
    arguments : sequence of str
        Arguments of pytest.
    folder : Path
        Working directory.
    seconds : float
        Limit of the run.
    log : Path
        File for the output, with whole tracebacks and the values of local variables.
    """
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-v", "-rfE", "--tb=long", "--showlocals"]
    command += ["--disable-warnings", "-p", "no:cacheprovider", *(f"-p{name}" for name in _PLUGINS)]
    command += ["--numprocesses=1", "--max-worker-restart=30", f"--timeout={_TEST_SECONDS}", "--timeout-method=thread"]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300"}
    late = ""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, *arguments], cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=stream,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            late = f"stopped after {seconds:.0f} s"
            process.kill()
    return _result(process.poll() or 0, log.read_text(encoding="utf-8", errors="replace"), late)


def _result(status: int, output: str, late: str) -> TestRun:
    failed = re.findall(r"^(?:FAILED|ERROR) (?:\S*::)?(.+)$", output, re.MULTILINE)
    last = output.strip().rpartition("\n")[2]
    counts = Counter({name: int(number) for number, name in _COUNT.findall(last)})
    if late or not counts:  # no summary was written
        ended = _ENDED.findall(output)
        counts = Counter(_NAMES.get(each, each.lower()) for each, _ in ended)
        failed = [name for each, name in ended if each in ("FAILED", "ERROR")]
    return TestRun(status or (-1 if late else 0), counts, failed, output, late)
