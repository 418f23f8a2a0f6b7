"""Programs in child processes that begin with forebay.cuda, two ways to run them, and devices for them."""

from __future__ import annotations

import os

from support.forking import FORKED

BEGIN = """
import os, signal, sys, threading, traceback
import forebay
from forebay import cuda
from forebay.runtime.base import lazy_init as initialisation

def started():
    return len(os.listdir("/proc/self/task")), len(threading.enumerate())

def refused(use, error, words):
    try:
        use()
    except error as caught:
        assert words in str(caught), caught
        return caught
    raise AssertionError("it was not refused")
"""
HEAD = BEGIN + FORKED


def said_by(runner, source, **settings):
    runner.write(HEAD + source)
    # Python 3.12 and later warn of any fork beside threads: some children here are about just that
    done = runner.command("-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py", **settings)
    assert (done.status, done.err) == (0, ""), done.err
    return done.out


def succeeds(runner, source, **settings):
    assert said_by(runner, source, **settings) == ""


def emulating(what="cuda:2@h200"):
    return {**os.environ, "FOREBAY_EMULATE": what}
