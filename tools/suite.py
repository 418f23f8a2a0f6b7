"""Run the test suite in parallel; what fails beside other tests runs again alone: tools/suite.py [arguments of pytest]

A child process, a timer or a page of a browser meets a load in a parallel run that no user has: one test of 15,000 that
depends on it would hide what the other 14,999 say. So at most MOST_REPEATED failed tests run again, one after another
in one process. A test that passes then does not fail the run, but is named at its end: it is a defect to be repaired,
of the test or of the code. More failures than that are not load, and are not repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST_REPEATED = 10
TESTS_FAILED = 1  # pytest's status; other ones say that it did not run all tests


def main(arguments: list[str]) -> int:
    """Run the suite, and its failures again; return pytest's status."""
    status = pytest("--cache-clear", *arguments)
    failed = failed_tests() if status == TESTS_FAILED else []
    if not 0 < len(failed) <= MOST_REPEATED:
        return status
    print(f"\nRun again alone ({len(failed)}):", *failed, sep="\n  ", flush=True)
    parallel = ("--numprocesses", "--dist")
    status = pytest("--last-failed", *(each for each in arguments if not each.startswith(parallel)))
    still = failed_tests()
    if passed := [name for name in failed if name not in still]:
        print(
            f"\nFailed beside other tests and passed alone ({len(passed)}); repair the cause:",
            *passed,
            sep="\n  ",
        )
    return status


def pytest(*arguments: str) -> int:
    """Run pytest; return its status."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def failed_tests() -> list[str]:
    """Return the names of the tests that failed in the last run."""
    try:
        return sorted(json.loads(LAST_FAILED.read_text()))
    except FileNotFoundError:  # pytest removes the file when nothing failed
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
