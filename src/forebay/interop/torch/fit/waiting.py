"""Waits for a program, and keeps the end of what it prints."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from typing import IO, Any, Protocol

__all__ = ["TAIL", "TooLong", "Waited", "wait"]

TAIL = 1 << 16  # bytes of the output that are kept


class TooLong(Exception):
    """The program took longer than it may."""


class Waited(Protocol):
    """The part of `subprocess.Popen` that is needed to wait for a process."""

    pid: int
    returncode: Any

    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...


def wait(process: Waited, timeout: float | None, look: Callable[[], None], interval: float) -> bytes:
    """Wait for the end of a program and of the processes that hold its output open.

    The standard output of `process` is a pipe; the result is its end, `TAIL` bytes at most: a program may print for
    days. `look` is called at each `interval` (seconds) while the program runs. TooLong is raised after `timeout`
    seconds.
    """
    now = time.monotonic()
    end, next_look, tail = None if timeout is None else now + timeout, now, b""
    assert process.stdout is not None  # noqa: S101 -- the caller has asked for it
    output, is_open = process.stdout.fileno(), True
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while is_open or process.poll() is None:
            now = time.monotonic()
            if end is not None and now >= end:
                raise TooLong
            if now >= next_look:
                look()
                next_look = time.monotonic() + interval
            pause = max(0.0, min(next_look, next_look if end is None else end) - now)
            if not is_open:  # the program has closed its output, and goes on
                time.sleep(min(pause, 0.02))
            elif selector.select(pause):
                piece = os.read(output, TAIL)
                is_open = bool(piece)
                tail = (tail + piece)[-TAIL:]
                if not is_open:
                    selector.unregister(output)
    return tail
