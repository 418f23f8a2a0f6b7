"""Test programs that run in child processes on emulated devices, and functions that run them."""

from __future__ import annotations

import os
from pathlib import Path

from support.forking import FORKED

PROLOGUE = """
import os, signal, sys, threading, traceback
import forebay
from forebay import cuda

def thread_counts():
    return len(os.listdir("/proc/self/task")), len(threading.enumerate())

def raises(function, error, message):
    try:
        function()
    except error as caught:
        assert message in str(caught), caught
        return caught
    raise AssertionError(f"did not raise {error.__name__}")
"""
PROLOGUE_WITH_FORK = PROLOGUE + FORKED
# Before any thread exists: up to CPython 3.12, a signal that another thread receives delays the late exceptions.
BLOCKING_ALARMS = """
import _signal
_signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGALRM})
"""


def output_of(runner, source, *, first="", **settings):
    """Run a program, of which `first` comes before the imports. Return what it prints."""
    runner.write(first + PROLOGUE_WITH_FORK + source)
    # Python 3.12 and later warn about forks of multi-threaded processes, which some programs test
    done = runner.command("-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py", **settings)
    assert (done.status, done.err) == (0, ""), done.err
    return done.out


def run_silently(runner, source, **settings):
    assert output_of(runner, source, **settings) == ""


def environment_emulating(devices="cuda:2@h200"):
    return {**os.environ, "FOREBAY_EMULATE": devices}


def with_tests_on_path():
    """Return the environment of a program that imports `support`."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}
