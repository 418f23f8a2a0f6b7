"""The recorder of this process, see Note [Records survive any end]. It never raises, and does not import PyTorch."""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from forebay._base.verdicts import Ending, How
from forebay.errors import warn_unraisable
from forebay.interop.torch.processes import assumed_values, checked_kernels, unread_values
from forebay.interop.torch.processes.endings import ending_of, with_status
from forebay.interop.torch.processes.live_record import LiveRecord
from forebay.interop.torch.processes.own_devices import note_own_devices

__all__ = ["FOLDER", "Recorder", "finish", "refused", "running", "start", "used"]

FOLDER = "FOREBAY_RECORDS"  # the folder of the records; unset: none are written
_MOST_FAILURES = 20
_IN_EXIT_HANDLER = "Exception ignored in atexit callback"  # the beginning of Python's words for sys.unraisablehook
_recorder: Recorder | None = None


class Recorder:
    """The records of this process, from `start` to its end, in a folder.

    `is_main` is True in the program's first process, in which `forebay run` records the end itself.
    """

    def __init__(self, folder: str, *, is_main: bool) -> None:
        self.folder, self.is_main = folder, is_main
        self.live: LiveRecord | None = None
        self.details: Callable[[], list[dict[str, Any]]] | None = None  # what held the peaks, at the end
        self.cards: Callable[[bool], dict[str, Any]] | None = None  # what other cards would do; True: at the end
        self.when_forked: Callable[[], None] | None = None
        self.ending: Ending | None = None
        self.failures: list[Ending] = []
        self._last_failure: BaseException | None = None
        self._status = 0
        self._is_replaced = False
        self._tells_status = False
        self._is_finished = False

    def start(self) -> None:
        """Begin to record. Raises OSError if the files cannot be written: verdicts without them would be wrong."""
        self._create()
        unread_values.listen(self.write)
        assumed_values.listen(self.write)
        _replace_hooks(self)
        os.register_at_fork(after_in_child=self._start_in_child)

    def fail(self, error: BaseException, where: str) -> None:
        """Record an exception that ended a thread or an exit handler."""
        if self._is_finished or len(self.failures) >= _MOST_FAILURES:
            return
        with suppress(Exception):
            ending = ending_of(error, where)
            if ending.how is not How.FINISHED and error is not self._last_failure:
                self._last_failure = error  # of two hooks that get the same
                self.failures.append(ending)
                self.write()

    def finish(self, status: int | None = None) -> None:
        """Record the end of this process, once: what held the peaks, the exception, and the status if it is known."""
        if self._is_finished:
            return
        self._is_finished, self._status = True, status or 0
        with suppress(Exception):
            error = None if self.is_main else getattr(sys, "last_value", None)
            if self.ending is None and isinstance(error, BaseException):
                self.ending = ending_of(error)
            if self.live is not None:
                if self.details is None:  # without PyTorch
                    note_own_devices(self.live)
                self.live.end(status)
            self.write(final=True)

    def ending_of_main(self) -> Ending:
        """Return how the program's first process ends, as far as it can tell itself."""
        if self._is_replaced:
            return Ending(How.REPLACED)
        return self.ending or with_status(self._status)

    def end_by_limit(self, ending: Ending) -> None:
        """Record that the time of the program is over, before another process kills it."""
        if self.ending is None and not self._is_finished:
            self.ending = ending
            self.write(final=True)

    def replaced(self, replaced: bool) -> None:
        """Record that another program replaces this one, or that it could not."""
        self._is_replaced = replaced
        with suppress(Exception):
            if replaced:
                self.write(final=True)
            if self.live is not None:
                self.live.replace(replaced)

    def _create(self) -> None:
        from forebay.interop.torch.processes import _process_end

        self.live = LiveRecord(self.folder)
        self._tells_status = _process_end.watch(self.live.end_address, not self.is_main)

    def restart(self, folder: str) -> None:
        """Begin anew in another folder, in a copy of this process: Note [Templates of processes]."""
        self.folder = folder
        self._start_in_child()

    def _start_in_child(self) -> None:
        """Begin anew in a forked child, as a fork handler."""
        self.live = None  # else what follows would write into the record of the parent
        try:
            from forebay.interop.torch.processes import _process_end

            _process_end.ignore()
            self.is_main, self._is_finished, self.ending = False, False, None
            self.failures = []
            unread_values.clear()
            assumed_values.clear()
            checked_kernels.clear()
            if Path(self.folder).is_dir():  # else the program has ended
                self._create()
            if self.when_forked is not None:
                self.when_forked()
        except Exception as error:  # noqa: BLE001 -- the child runs without records
            warn_unraisable(f"the device memory of process {os.getpid()} is not recorded: {error}")

    def write(self, *, final: bool = False) -> None:
        """Write what needs words. `final` adds what held the peaks."""
        if self.live is None:
            return
        with suppress(Exception):
            text = {
                "tells_status": self._tells_status,
                "finished": self._is_finished,
                "ending": asdict(self.ending) if self.ending is not None else None,
                "failures": [asdict(each) for each in self.failures],
                "unread": [*unread_values.lines()],
                "assumed": assumed_values.found(),
                "kernels": checked_kernels.found(),
                "devices": self.details() if final and self.details is not None else [],
                "cards": None if self.cards is None else self.cards(final),  # after the details
            }
            path = self.live.path.with_suffix(".json")
            partial = path.with_suffix(f".partial{threading.get_ident()}")
            partial.write_text(json.dumps(text))
            partial.replace(path)


def start(folder: str | None = None, *, is_main: bool = False) -> Recorder | None:
    """Return the recorder of this process, which begins with the first call; None if no records are wanted."""
    global _recorder  # noqa: PLW0603 -- that of the process
    folder = folder or os.environ.get(FOLDER)
    if _recorder is None and folder and Path(folder).is_dir():
        _recorder = Recorder(folder, is_main=is_main)
        _recorder.start()
    return _recorder


def running() -> Recorder | None:
    """Return the recorder of this process, if there is one."""
    return _recorder


def used(index: int, capacity: int, allocated: int, reserved: int) -> None:
    """Record what a device has in blocks and in segments now, after an allocation."""
    if _recorder is not None and _recorder.live is not None:
        _recorder.live.used(index, capacity, allocated, reserved)


def refused(index: int, capacity: int, nbytes: int) -> None:
    """Record a request that ran out of memory."""
    if _recorder is not None and _recorder.live is not None:
        _recorder.live.refused(index, capacity, nbytes)


def finish() -> None:
    """Record the end of this process; also that of one that has ended with an exception before it imported PyTorch."""
    if (found := start()) is not None:
        found.finish()


def _replace_hooks(recorder: Recorder) -> None:
    _replace_thread_hook(recorder)
    _replace_finalizers(recorder)
    _record_ignored(recorder)
    # The program may have replaced the hook when its exit handlers run. Functions of this list are called before them.
    with suppress(AttributeError, RuntimeError):  # a private function of Python; or the interpreter ends already
        threading._register_atexit(lambda: _record_ignored(recorder))  # type: ignore[attr-defined]  # a private function
    _replace_exits(recorder)
    _replace_run(recorder)


def _replace_thread_hook(recorder: Recorder) -> None:
    """Record the exceptions of threads, also if the program replaces threading.excepthook later."""
    make = getattr(threading, "_make_invoke_excepthook", None)

    def note(error: BaseException | None, thread: threading.Thread | None) -> None:
        if error is not None and not isinstance(error, SystemExit):  # which ends a thread, but not the program
            recorder.fail(error, f"thread {thread.name}" if thread is not None else "thread")

    if make is None:  # a private function of Python
        in_thread = threading.excepthook

        def on_thread_error(args: threading.ExceptHookArgs, /) -> None:
            note(args.exc_value, args.thread)
            in_thread(args)

        threading.excepthook = on_thread_error
        return

    def make_and_record() -> Callable[[threading.Thread], None]:
        invoke = make()

        def record_and_invoke(thread: threading.Thread) -> None:
            note(sys.exc_info()[1], thread)
            invoke(thread)

        return record_and_invoke

    threading._make_invoke_excepthook = make_and_record  # type: ignore[attr-defined]  # a private function


def _record_ignored(recorder: Recorder) -> None:
    """Record what Python ignores in exit handlers, and in threads without a Thread."""
    ignored = sys.unraisablehook
    if getattr(ignored, "recorder", None) is recorder:
        return

    def on_ignored_error(args: sys.UnraisableHookArgs, /) -> None:
        # Exit handlers, and threads without a Thread, are called by no Python function; destructors are. A handler
        # that is no Python function, such as functools.partial(sys.exit, 3), leaves no frame at all.
        is_handler = (args.err_msg or "").startswith(_IN_EXIT_HANDLER)
        if args.exc_value is not None and (is_handler or _is_outermost(args.exc_traceback)):
            recorder.fail(args.exc_value, "exit handler")
        ignored(args)

    on_ignored_error.recorder = recorder  # type: ignore[attr-defined]  # so that it is not replaced twice
    sys.unraisablehook = on_ignored_error


def _replace_finalizers(recorder: Recorder) -> None:
    """Record the exceptions of weakref.finalize at exit, which it passes to sys.excepthook; the status stays 0."""
    finalize = weakref.finalize
    at_exit = getattr(getattr(finalize, "_exitfunc", None), "__code__", None)
    call = finalize.__call__

    @wraps(call)
    def record_and_call(self: weakref.finalize[..., Any], _: object = None) -> Any:
        try:
            return call(self, _)
        except Exception as error:
            if sys._getframe(1).f_code is at_exit:
                recorder.fail(error, "exit handler")
            raise

    finalize.__call__ = record_and_call  # type: ignore[method-assign]  # of this process


def _replace_run(recorder: Recorder) -> None:
    """Record the exception of a process of multiprocessing, which prints it and exits with status 1."""
    run = BaseProcess.run

    @wraps(run)
    def record_and_run(self: BaseProcess) -> None:
        try:
            run(self)
        except Exception as error:
            recorder.ending = ending_of(error)
            raise

    BaseProcess.run = record_and_run  # type: ignore[method-assign]  # of this process


def _replace_exits(recorder: Recorder) -> None:
    exit_now, execv, execve = os._exit, os.execv, os.execve

    @wraps(exit_now)
    def record_and_exit(status: int) -> NoReturn:
        recorder.finish(status)
        exit_now(status)

    @wraps(execv)
    def record_and_execv(*args: Any, **keywords: Any) -> NoReturn:
        recorder.replaced(True)
        try:
            execv(*args, **keywords)
        finally:  # it could not
            recorder.replaced(False)

    @wraps(execve)
    def record_and_execve(*args: Any, **keywords: Any) -> NoReturn:
        recorder.replaced(True)
        try:
            execve(*args, **keywords)
        finally:
            recorder.replaced(False)

    os._exit, os.execv, os.execve = record_and_exit, record_and_execv, record_and_execve


def _is_outermost(trace: TracebackType | None) -> bool:
    return trace is not None and trace.tb_frame.f_back is None
