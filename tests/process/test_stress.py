"""Stress of emulated devices by many threads, in child processes because a failure may crash the process.

Without Note [Decommit protocol] both end with SIGSEGV.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

SECONDS = 4
TESTS = str(Path(__file__).parents[1])


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_threads_that_use_everything_leave_nothing(runner, settings):
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    done = runner.command(
        *("-X", "dev", "-m", "support.stress", settings, str(SECONDS)), env={**os.environ, "PYTHONPATH": path}
    )
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert min(found["operations"].values()) > 0
    assert len(found["operations"]) == 12
