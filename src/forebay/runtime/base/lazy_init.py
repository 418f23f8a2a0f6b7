"""Lazy initialisation of device kinds: queued calls, their execution at first use, and the fork check.

# Note [Lazy initialisation]
Importing, counting, querying and seeding must create no state of a device, so that a later fork is harmless. Calls that
need a device are queued until its first use: then the queued calls run, and of those that seed one device and those
that seed all only the last one each, in the order in which they were made. A queued call may use the kind itself, in
the same thread (`is_initializing`), so `done` is set after the last one: another thread waits for the lock and sees all
of them done. If one fails, the kind stays uninitialised. This lock is always taken before that of `open_device`, as a
queued call may open a device; the other order would be a deadlock of two threads. Rejected: `done` before the calls
run, as other threads would then use a device without its seed.
Test: tests/runtime/base/test_lazy_init.py::test_call_during_initialisation_runs_once_after_queued_calls
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from forebay import backends
from forebay._base.device_spec import Device
from forebay.errors import ForebayError, Forked, user_frame

__all__ = ["DeferredCallError", "LazyInit", "SeedTracker", "after_fork_in_child", "before_first_use", "get"]

# Called with the kind before its queued calls run; an exception leaves the kind uninitialised.
before_first_use: list[Callable[[str], object]] = []

_Call = tuple[Callable[[], Any], list[str]]  # a function, and the stack of the caller that queued it


class DeferredCallError(Exception):
    """Error of a call that was queued until its kind's first use. The message has the stack of the call."""


class _ThreadState(threading.local):
    is_initializing = False  # this thread runs the queued calls; PyTorch's name


class SeedTracker:
    """The last queued call that seeds all devices and the last that seeds one device, in queueing order (PyTorch)."""

    def __init__(self) -> None:
        self._all: _Call | None = None
        self._one: _Call | None = None
        self._all_is_last = False

    def queue_seed_all(self, cb: Callable[[], Any], traceback: list[str]) -> None:
        self._all, self._all_is_last = (cb, traceback), True

    def queue_seed(self, cb: Callable[[], Any], traceback: list[str]) -> None:
        self._one, self._all_is_last = (cb, traceback), False

    def get_calls(self) -> list[_Call | None]:
        return [self._one, self._all] if self._all_is_last else [self._all, self._one]


class LazyInit:
    """Lazy initialisation of one kind. `ensure` runs it once, with the queued calls in order.

    `prepare` is the part of it that PyTorch's C++ functions do: afterwards the kind has a device and valid settings.
    See Note [Lazy initialisation].
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done: bool = False  # in this process
        self.prepared: bool = False
        self.count: int = 0  # devices at initialisation; as in PyTorch, not counted again
        self.devices: dict[int, Device] = {}  # by index; empty unless `done`
        self.bad_fork = False  # forked from a process that had initialised the kind, or its driver
        self.queued: list[_Call] = []
        self.deferred_error: type[Exception] = DeferredCallError
        self.no_backend = ""  # text of the AssertionError that PyTorch raises without a backend
        self.lock: threading.RLock = threading.RLock()
        self.thread_state: _ThreadState = _ThreadState()
        self.seeds: SeedTracker = SeedTracker()
        self._where = ""
        self._asked = ""  # where `note_driver` was called

    @property
    def word(self) -> str:
        """The kind as spelled in messages."""
        return self.kind.upper()

    def ensure(self) -> None:
        """Initialise the kind if necessary. Raise Forked, ForebayError or `deferred_error` if it is not usable."""
        if self.done:
            return
        self.check_fork()
        if self.thread_state.is_initializing:
            return
        with self.lock:
            if self.done:
                return
            self._prepare()
            self._where = _caller()
            self._run()
            self.devices.update((index, Device(self.kind, index)) for index in range(self.count))
            self.done = True

    def prepare(self) -> None:
        """Check that the kind is usable, without running the queued calls. Raise as `ensure`."""
        if not self.prepared:
            self.check_fork()
            with self.lock:
                self._prepare()

    def _prepare(self) -> None:
        driver = backends.driver(self.kind)
        self.count = driver.count()
        if not self.count:
            raise self._no_device(driver.why_not())
        if not self.prepared:
            for function in before_first_use:
                function(self.kind)
            self.prepared = True

    def has_backend(self) -> bool:
        """Return True if a backend for the kind is installed, with or without devices."""
        return self.done or self.kind in backends.drivers()

    def _no_device(self, reason: str) -> Exception:
        if self.no_backend and not self.has_backend():
            return AssertionError(f"{self.no_backend}\n{reason}")
        return ForebayError(reason)

    def check_fork(self) -> None:
        if self.bad_fork:
            word = self.word
            reason = f"\nThe parent process initialised {word} in {self._where}." if self._where else ""
            if self._asked and not reason:
                reason = f"\nThe parent process initialised the driver of {word} with {self._asked}."
            raise Forked(
                f"Cannot re-initialize {word} in forked subprocess. To use {word} with multiprocessing, you must use "
                f"the 'spawn' start method{reason}"
            )

    def note_driver(self, function: str) -> None:
        """Note that a function of this name initialises the driver, but not the kind, as some of PyTorch's queries do.

        A child that is forked afterwards cannot use the kind. Only the first call counts. See
        Note [Queries that initialise the driver].
        """
        if not self._asked:
            where = _caller()
            self._asked = f"{function}() in {where}" if where else f"{function}()"

    def call(self, function: Callable[[], Any], *, seeds: str = "") -> Any:
        """Call the function now and return its result, or queue it until initialisation and return None.

        `seeds` is "all" or "one" if the call seeds all devices or one: only the last queued call of each is kept.
        """
        if self.done or self.thread_state.is_initializing:
            return function()
        stack = traceback.format_stack()[:-1]
        with self.lock:
            if not self.done:  # else another thread has initialised the kind
                if seeds == "all":
                    self.seeds.queue_seed_all(function, stack)
                elif seeds == "one":
                    self.seeds.queue_seed(function, stack)
                else:
                    self.queued.append((function, stack))
                return None
        return function()

    def _run(self) -> None:
        self.thread_state.is_initializing = True
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
            self.thread_state.is_initializing = False

    def reset(self) -> None:
        """Return to the uninitialised state when the kind's emulation stops. Queued calls are kept."""
        with self.lock:
            self.done, self.prepared, self._where, self._asked = False, False, "", ""
            self.seeds = SeedTracker()
            self.devices.clear()


_by_kind: dict[str, LazyInit] = {}


def get(kind: str) -> LazyInit:
    """Return the kind's lazy initialisation."""
    known = _by_kind.get(kind)
    return _by_kind.setdefault(kind, LazyInit(kind)) if known is None else known


def after_fork_in_child(usable: frozenset[str]) -> None:
    """Reset all kinds in a forked child. Kinds that the parent has used cannot be used, except those in `usable`."""
    for kind, init in _by_kind.items():
        init.lock = threading.RLock()
        init.thread_state = _ThreadState()
        if kind not in usable:
            init.bad_fork = init.bad_fork or init.done or bool(init._asked)  # noqa: SLF001 -- of this module
            init.done = init.prepared = False
            init.devices.clear()


def _caller() -> str:
    frame, _ = user_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"
