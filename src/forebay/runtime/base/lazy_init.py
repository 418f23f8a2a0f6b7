"""The first use of a kind of device: what waits for it, what it runs, and what a forked child may not do any more."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from forebay import backends
from forebay.errors import ForebayError, Forked, user_frame

__all__ = ["DeferredCallError", "Initialisation", "SeedTracker", "forget_in_child", "of"]

_Call = tuple[Callable[[], Any], list[str]]  # what to do, and the stack of who asked for it


class DeferredCallError(Exception):
    """A call that waited for a kind's first use failed then; the message has the stack of who made it."""


class _Here(threading.local):
    is_initializing = False  # this thread runs the queued calls; PyTorch's name


class SeedTracker:
    """Of the calls that seed all devices, and of those that seed one, the last of each: the later one comes last."""

    def __init__(self) -> None:
        self._all: _Call | None = None
        self._one: _Call | None = None
        self._all_came_last = False

    def queue_seed_all(self, cb: Callable[[], Any], traceback: list[str]) -> None:
        self._all, self._all_came_last = (cb, traceback), True

    def queue_seed(self, cb: Callable[[], Any], traceback: list[str]) -> None:
        self._one, self._all_came_last = (cb, traceback), False

    def get_calls(self) -> list[_Call | None]:
        return [self._one, self._all] if self._all_came_last else [self._all, self._one]


class Initialisation:
    """Of one kind. `ensure` does it, once; queued calls run then, in the order in which they were made.

    Double-checked and re-entrant: a queued call may use the device, and its failure leaves the kind as it was before.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done = False  # by this process
        self.count = 0  # of devices, since it was done: no more than PyTorch do we count again
        self.bad_fork = False  # this process was forked from one that had used the kind
        self.queued: list[_Call] = []
        self.deferred_error: type[Exception] = DeferredCallError
        self.no_backend = ""  # PyTorch's words where there is none, an AssertionError then
        self.lock = threading.RLock()
        self.here = _Here()
        self.seeds = SeedTracker()
        self._where = ""

    @property
    def word(self) -> str:
        """The kind as messages spell it."""
        return self.kind.upper()

    def ensure(self) -> None:
        """The kind is usable, or the reason why not is raised: Forked, ForebayError, or `deferred_error`."""
        if self.done:
            return
        self.check_fork()
        if self.here.is_initializing:
            return
        with self.lock:
            if self.done:
                return
            driver = backends.driver(self.kind)
            self.count = driver.count()
            if not self.count:
                raise self._no_device(driver.why_not())
            self._where = _caller()
            self._run()
            self.done = True

    def has_backend(self) -> bool:
        """Whether somebody would drive the kind's devices, though there may be none."""
        return self.done or self.kind in backends.drivers()

    def _no_device(self, reason: str) -> Exception:
        if self.no_backend and not self.has_backend():
            return AssertionError(f"{self.no_backend}\n{reason}")
        return ForebayError(reason)

    def check_fork(self) -> None:
        if self.bad_fork:
            word, where = self.word, self._where
            raise Forked(
                f"Cannot re-initialize {word} in forked subprocess. To use {word} with multiprocessing, you must use "
                "the 'spawn' start method" + (f"\nThe parent process initialised {word} in {where}." if where else "")
            )

    def call(self, function: Callable[[], Any], *, seeds: str = "") -> Any:
        """Call it now, and give what it gives, or call it when the kind is used first, and give None.

        Of calls that seed "all" devices or "one" only the last of each counts, the later one last.
        """
        if self.done or self.here.is_initializing:
            return function()
        stack = traceback.format_stack()[:-1]
        with self.lock:
            if not self.done:  # else another thread was at it
                if seeds == "all":
                    self.seeds.queue_seed_all(function, stack)
                elif seeds == "one":
                    self.seeds.queue_seed(function, stack)
                else:
                    self.queued.append((function, stack))
                return None
        return function()

    def _run(self) -> None:
        self.here.is_initializing = True
        try:
            for function, stack in [*self.queued, *filter(None, self.seeds.get_calls())]:
                try:
                    function()
                except Exception as error:
                    raise self.deferred_error(
                        f"{self.word} call failed lazily at initialization with error: {error}\n\n"
                        f"{self.word} call was originally invoked at:\n\n{''.join(stack)}"
                    ) from error
        finally:
            self.here.is_initializing = False

    def reset(self) -> None:
        """As if it had never been used: its emulation has ended. What is queued stays for the next."""
        with self.lock:
            self.done, self._where, self.seeds = False, "", SeedTracker()


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
        found.bad_fork = found.bad_fork or (found.done and kind not in reopen)
        found.done = False


def _caller() -> str:
    frame, _ = user_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"
