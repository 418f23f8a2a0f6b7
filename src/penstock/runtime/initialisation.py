"""The first use of a kind of device: what waits for it, what it runs, and what a forked child may not do any more."""

from __future__ import annotations

import inspect
import threading
import traceback
from collections.abc import Callable
from typing import Any

from penstock import backends
from penstock.errors import Forked, PenstockError

__all__ = ["DeferredCallError", "Initialisation", "forget_in_child", "of"]

_Call = tuple[Callable[[], Any], list[str]]  # what to do, and the stack of who asked for it


class DeferredCallError(Exception):
    """A call that waited for a kind's first use failed then; the message has the stack of who made it."""


class _Here(threading.local):
    at_it = False  # this thread runs the queued calls


class Initialisation:
    """Of one kind. `ensure` does it, once; queued calls run then, in the order in which they were made.

    Double-checked and re-entrant: a queued call may use the device, and its failure leaves the kind as it was before.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done = False
        self.bad_fork = False  # this process was forked from one that had used the kind
        self.queued: list[_Call] = []
        self.deferred_error: type[Exception] = DeferredCallError
        self.lock = threading.RLock()
        self.here = _Here()
        self._seeds: tuple[_Call | None, _Call | None] = None, None  # for all devices and for one: the last of each
        self._all_came_last = False
        self._where = ""

    @property
    def word(self) -> str:
        """The kind as messages spell it."""
        return self.kind.upper()

    def ensure(self) -> None:
        """The kind is usable, or the reason why not is raised: Forked, PenstockError, or `deferred_error`."""
        if self.done and not self.bad_fork:
            return
        self.check_fork()
        if self.here.at_it:
            return
        with self.lock:
            if self.done:
                return
            driver = backends.driver(self.kind)
            if not driver.count():
                raise PenstockError(driver.why_not())
            self._where = _caller()
            self._run()
            self.done = True

    def check_fork(self) -> None:
        if self.bad_fork:
            word, where = self.word, self._where
            raise Forked(
                f"Cannot re-initialize {word} in forked subprocess. To use {word} with multiprocessing, you must use "
                "the 'spawn' start method" + (f"\nThe parent process initialised {word} in {where}." if where else "")
            )

    def call(self, function: Callable[[], Any], *, seeds: str = "") -> None:
        """Call it now, or when the kind is used first.

        Of calls that seed "all" devices or "one" only the last of each counts, the later one last.
        """
        if self.done or self.here.at_it:
            function()
            return
        made = function, traceback.format_stack()[:-1]
        with self.lock:
            every, one = self._seeds
            if seeds:
                self._all_came_last = seeds == "all"
                self._seeds = (made, one) if seeds == "all" else (every, made)
            else:
                self.queued.append(made)

    def _run(self) -> None:
        every, one = self._seeds
        seeds = (one, every) if self._all_came_last else (every, one)
        self.here.at_it = True
        try:
            for function, stack in [*self.queued, *filter(None, seeds)]:
                try:
                    function()
                except Exception as error:
                    raise self.deferred_error(
                        f"{self.word} call failed lazily at initialization with error: {error}\n\n"
                        f"{self.word} call was originally invoked at:\n\n{''.join(stack)}"
                    ) from error
        finally:
            self.here.at_it = False

    def reset(self) -> None:
        """As if it had never been used: its emulation has ended. What is queued stays for the next."""
        with self.lock:
            self.done, self._where, self._seeds = False, "", (None, None)


_of: dict[str, Initialisation] = {}


def of(kind: str) -> Initialisation:
    """The kind's only one."""
    found = _of.get(kind)
    return _of.setdefault(kind, Initialisation(kind)) if found is None else found


def forget_in_child(reopen: frozenset[str]) -> None:
    """For the fork handler: the kinds of `reopen` start anew, the others were the parent's alone."""
    for kind, found in _of.items():
        found.lock = threading.RLock()
        found.here = _Here()
        if kind in reopen:
            found.done = False
        elif found.done:
            found.bad_fork = True


def _caller() -> str:
    """The innermost line that is not penstock's own."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("penstock", "contextlib", "functools"):
            return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
