"""Destructors that are interrupted: repeated until they return, and the interrupts arrive later."""

from __future__ import annotations

import ctypes
import gc
import operator
import signal
import sys
import threading
from collections import deque
from functools import partial

import pytest

import forebay
from forebay.backends.common._disposal import Disposable, call_taken, call_with_all, interrupts, move_all
from forebay.runtime.allocator.caching_allocator import Allocator


class Handled(Exception):
    """An exception that a signal handler raises, and that is no KeyboardInterrupt."""


class Scripted(Disposable):
    """Calls the functions of a list, one in each attempt, and notes whether an attempt returned."""

    def __init__(self, *calls):
        self.calls, self.log = list(calls), []

    def _dispose(self):
        self.log.append("begin")
        if self.calls:
            self.calls.pop(0)()
        self.log.append("end")


def interrupt():
    raise KeyboardInterrupt


def fail():
    raise ValueError("a fault")


def handler(*_):
    raise Handled


@pytest.fixture(autouse=True)
def _no_collection():
    """Let no exception arrive in a destructor or a callback that belongs to the garbage of other tests."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def unraised(monkeypatch):
    found = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: found.append(repr(unraisable.exc_value)))
    return found


def drop(*calls):
    """Delete an object. Return what its attempts did, and the exceptions that arrived."""
    scripted = Scripted(*calls)
    log = scripted.log

    def delete():
        nonlocal scripted
        scripted = None

    return log, arrivals(delete, len(calls))


def arrivals(action, count):
    """Call a function. Return the names of the exceptions that arrive, up to `count`."""
    caught = []

    def attempt(levels):
        nonlocal caught
        try:
            if levels:
                attempt(levels - 1)
            else:
                action()
            for _ in range(9):  # exceptions arrive at the end of an iteration
                pass
        except (KeyboardInterrupt, Handled) as error:
            caught += [error]  # without a call, at whose end the next one could arrive

    attempt(count + 1)
    return [type(error).__name__ for error in caught]


def test_interrupted_destructor_is_repeated(unraised):
    assert drop(interrupt) == (["begin", "begin", "end"], ["KeyboardInterrupt"])
    assert unraised == []


def test_each_interrupt_arrives(unraised):
    assert drop(interrupt, interrupt) == (["begin"] * 3 + ["end"], ["KeyboardInterrupt"] * 2)
    assert unraised == []


def test_interrupt_during_the_way_of_another_arrives(unraised):
    def interrupt_twice():
        try:
            interrupt()
        finally:
            interrupt()

    assert drop(interrupt_twice, lambda: None) == (["begin", "begin", "end"], ["KeyboardInterrupt"] * 2)
    assert unraised == []


def test_any_exception_of_a_signal_handler_is_an_interrupt(unraised):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        log, caught = drop(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (log, caught, unraised) == (["begin", "begin", "end"], ["Handled"], [])


def test_exceptions_of_signal_handlers_are_told_from_others():
    found = []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for raising in (interrupt, partial(signal.raise_signal, signal.SIGUSR1), fail, partial(handler, 0)):
            try:
                raising()
            except BaseException as error:  # noqa: BLE001 -- of each kind
                found.append(interrupts(error))
        assert found == [True, True, False, True]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not interrupts(Handled())


def test_fault_is_reported_once(unraised):
    assert drop(fail, fail) == (["begin", "begin"], [])
    assert unraised == ["ValueError('a fault')"]


def test_fault_that_does_not_return_is_reported(unraised):
    assert drop(fail) == (["begin", "begin", "end"], [])
    assert unraised == ["ValueError('a fault')"]


def test_destructor_at_the_limit_of_recursion_is_completed(unraised):
    limit = sys.getrecursionlimit()

    def overflow():
        raise RecursionError

    assert drop(overflow) == (["begin", "begin", "end"], [])
    assert (unraised, sys.getrecursionlimit()) == ([], limit)


def test_destructor_that_is_always_interrupted_is_continued_later(unraised):
    log, caught = drop(*[interrupt] * 150)
    assert (log.count("begin"), log[-1], len(caught), unraised) == (151, "end", 150, [])


def test_interrupts_of_more_destructors_than_pending_calls_all_arrive(unraised):
    """Nothing runs between the destructors: one function of C deletes the objects, and others are interrupted."""
    interrupt = partial(signal.default_int_handler, signal.SIGINT, None)
    steps = map(operator.call, [interrupt, int] * 50)

    class Interrupted(Disposable):
        _dispose = partial(next, steps)

    objects = [Interrupted() for _ in range(50)]
    assert arrivals(objects.clear, 50) == ["KeyboardInterrupt"] * 50
    assert (list(steps), unraised) == ([], [])


def test_destructor_that_finds_no_room_for_a_pending_call_is_completed(unraised):
    """Previously a destructor that was interrupted 100 times remained incomplete then."""
    scripted = Scripted(*[interrupt] * 150)
    log = scripted.log
    callback, add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p), ctypes.pythonapi.Py_AddPendingCall
    ignored = callback(lambda _: 0)

    @callback
    def occupy(_):  # while it runs, no other pending call does
        nonlocal scripted
        while add(ignored, None) == 0:
            pass
        scripted = None
        return 0

    def run():
        assert add(occupy, None) == 0

    assert arrivals(run, 150) == []
    assert (log.count("begin"), log[-1], unraised) == (151, "end", ["KeyboardInterrupt()"] * 150)


def drop_while_handling(kind):
    """Return what `drop` does while an exception is handled, and whether that stays as it is."""
    error = kind()
    try:
        raise error
    except kind:
        caught = drop(interrupt)[1]
        return caught, sys.exc_info()[1] is error and error.__context__ is None


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_exception_that_is_being_handled_is_kept_and_does_not_arrive_again(kind, unraised):
    assert drop_while_handling(kind) == (["KeyboardInterrupt"], True)
    assert unraised == []


def test_other_threads_report_interrupts(unraised):
    """Only the main thread runs signal handlers, so the exception is one of the thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(drop(interrupt)))
    thread.start()
    thread.join(20)
    assert results == [(["begin", "begin", "end"], [])]
    assert unraised == ["KeyboardInterrupt()"]


def test_any_class_can_be_the_second_base():
    disposed = []

    class Pair(Disposable, tuple):  # noqa: SLOT001 -- the layout is tested
        def _dispose(self):
            disposed.append(tuple(self))

    class Slotted(Disposable):
        __slots__ = ("value",)

        def _dispose(self):
            disposed.append(self.value)

    Pair((1, 2))
    slotted = Slotted()
    slotted.value = 3
    del slotted
    assert disposed == [(1, 2), 3]


def test_destructor_of_a_derived_class_may_call_that_of_the_base():
    class Derived(Scripted):
        def __del__(self):
            self.log.append("derived")
            super().__del__()

    derived = Derived()
    log = derived.log
    del derived
    assert log == ["derived", "begin", "end"]


def test_resurrected_object_is_disposed_once():
    kept = []

    class Kept(Scripted):
        def _dispose(self):
            super()._dispose()
            kept.append(self)

    made = Kept()
    log = made.log
    del made
    assert log == ["begin", "end"]
    kept.clear()
    gc.collect()
    assert log == ["begin", "end"]


def test_objects_in_a_cycle_are_disposed():
    scripted = Scripted()
    log = scripted.log
    scripted.cycle = scripted
    del scripted
    gc.collect()
    assert log == ["begin", "end"]


def test_interrupted_free_of_a_used_block_is_repeated(monkeypatch):
    """Previously the late interrupt came at the beginning of each repetition, so that the free was never completed."""
    original, calls = Allocator._defer, []

    def defer(allocator):
        calls.append(allocator)
        if len(calls) == 1:
            raise KeyboardInterrupt
        original(allocator)

    monkeypatch.setattr(Allocator, "_defer", defer)
    stream = forebay.Stream("cpu")
    block = forebay.allocate(1000, "cpu")
    block.record_stream(stream.handle)

    def free():
        nonlocal block
        block = None
        for _ in range(9):
            pass

    with pytest.raises(KeyboardInterrupt):
        free()
    assert len(calls) == 2


def test_steps_move_what_they_use():
    source, target, seen = [1, 2], deque([0]), []
    move_all(source, target)
    assert (source, target) == ([], deque([0, 1, 2]))
    call_with_all(seen.append, source)
    source = [3]
    call_with_all(seen.append, source)
    assert (source, seen) == ([], [3])
    table = {1: lambda: seen.append("called")}
    call_taken(table.pop, 1)
    call_taken(table.pop, 1, None)
    assert (table, seen) == ({}, [3, "called"])
