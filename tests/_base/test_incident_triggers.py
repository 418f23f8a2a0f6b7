"""Triggers of incident files: exit, signals, and actions that fail."""

from __future__ import annotations

import os
import queue
import signal
import threading

import pytest

from forebay._base.incident_triggers import IncidentTriggers, check_reasons
from forebay.errors import ForebayWarning

SECONDS = 30


def failing(reason: str) -> None:
    raise RuntimeError(f"device failed at {reason}")


def test_failure_at_exit_is_a_warning():
    triggers = IncidentTriggers(failing, ["exit"])
    triggers.start()
    with pytest.warns(ForebayWarning, match=r"\(exit\): RuntimeError: device failed at exit"):
        triggers._at_exit()
    assert not triggers.started


@pytest.mark.filterwarnings("ignore:no files were written:forebay.errors.ForebayWarning")
def test_next_signal_acts_after_a_failure():
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()

    def act(reason: str) -> None:
        seen.put(reason)
        failing(reason)

    before = signal.getsignal(signal.SIGUSR1)
    triggers = IncidentTriggers(act, ["signal"])
    triggers.start()
    try:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert seen.get(timeout=SECONDS) == "signal"
    finally:
        triggers.stop()
    assert signal.getsignal(signal.SIGUSR1) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "forebay-incidents"]


@pytest.mark.parametrize("on", ["exit", ["exit", "never"]])
def test_unknown_reasons_are_refused(on):
    with pytest.raises(ValueError, match="on must be a collection of 'oom', 'exit', 'signal', and has"):
        check_reasons(on)
