"""Exit and fork handlers, which `forebay._wiring` registers. None raises.

# Note [Fork]
A forked child has the parent's memory, and none of its threads. Waiting for a queue of the parent never returns, and
another thread of the parent may have held any lock at the moment of the fork. So the child replaces every lock and
every table of threads, and joins, waits for and frees nothing on behalf of the parent: each module with a lock has a
function `after_fork_in_child`. Native queues are replaced as a whole and the old ones leaked, as a condition variable
with sleeping threads cannot be destroyed. Devices become unusable (`Forked`), except those that survive: the CPU device
goes on with its own copy of the memory, so a handler waits before the fork, five seconds at most, for the work that the
child would miss. Rejected: opening a device again on request, as the child could not use the tensors of its parent; and
running the pending work in the child, too, as it may act on files that both share.
Test: tests/process/test_fork.py::test_queued_work_completes_before_the_fork,
  tests/runtime/random/test_generator.py::test_forked_child_has_own_lock_and_state

# Note [Exit]
Destructors, daemon threads and other exit handlers may use tensors to the very end. Queues are closed, after five
seconds for their work, and what was dropped is a warning; but memory is not released, as an array that is read later
would end the process. Threads that remain at the exit are daemons, and the errors that closed queues raise in them are
not reported. Rejected: closing the devices, as a destructor that runs later would write to unmapped memory.
Test: tests/process/test_exit.py::test_earlier_exit_handlers_run_after_queues_are_closed
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, warn_unraisable
from forebay.runtime.devices import current, open_device, retired_devices
from forebay.runtime.memory import ipc_memory
from forebay.runtime.random import generator

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from threading import ExceptHookArgs

__all__ = ["EXIT_SECONDS", "FORK_SECONDS", "after_fork_in_child", "at_exit", "before_fork"]

EXIT_SECONDS = 5.0  # time for all queued work at interpreter exit; what is still pending then is dropped

FORK_SECONDS = 5.0  # time before a fork for the work that the child would miss


def at_exit() -> None:
    """Close all queues, and say which work was not done."""
    _silence_daemon_threads()
    dropped = _close_queues(EXIT_SECONDS)
    if dropped:
        queues = "1 queue" if dropped == 1 else f"{dropped} queues"
        warn_unraisable(
            f"work of {queues} was not done {EXIT_SECONDS:g} s after the program's end, and was dropped: "
            "synchronize before exiting"
        )


def _silence_daemon_threads() -> None:
    """Report no error of a thread that uses a device after this point.

    Threads that remain at exit are daemons, which end in any instruction. They are no cause of the errors that closed
    queues raise until then.
    """
    report_thread, report_other = threading.excepthook, sys.unraisablehook

    def in_thread(arguments: ExceptHookArgs) -> None:
        if not isinstance(arguments.exc_value, ForebayError):
            report_thread(arguments)

    def elsewhere(arguments: UnraisableHookArgs) -> None:
        is_thread = (arguments.err_msg or "").startswith("Exception ignored in thread started by")  # by `_thread`
        if not (is_thread and isinstance(arguments.exc_value, ForebayError)):
            report_other(arguments)

    threading.excepthook, sys.unraisablehook = in_thread, elsewhere


def _close_queues(seconds: float) -> int:
    """Close all queues, waiting for their pending work. Return the number of queues that timed out.

    Memory is not freed: Note [Exit].
    """
    end = time.monotonic() + seconds
    devices = (*open_device.open_devices().devices, *retired_devices.remaining())
    dropped = 0
    for opened in devices:
        if opened.idle_release is not None:
            opened.idle_release.stop()
        for queue in (*opened.queues.values(), *opened.external_queues.values()):
            try:
                dropped += not queue.close(max(end - time.monotonic(), 0.0))
            except Exception as error:  # noqa: BLE001 -- an exit handler cannot raise to a caller
                warn_unraisable(f"{opened.device}: a queue could not be closed: {error}")
        opened.allocator.detach_queues()
    for pinned in (*open_device.pinned_allocators(), *(opened.own_pinned for opened in retired_devices.remaining())):
        if pinned is not None:
            pinned.close()
    return dropped


def before_fork() -> None:
    """Complete the queued work, which the child would miss."""
    try:
        open_device.before_fork(FORK_SECONDS)
    except Exception as error:  # noqa: BLE001 -- a fork handler cannot raise to a caller
        warn_unraisable(f"queued work was not completed before the fork: {error}")


def after_fork_in_child() -> None:
    """Make the parent's devices unusable in the child: Note [Fork]."""
    open_device.after_fork_in_child()
    retired_devices.after_fork_in_child()
    current.after_fork_in_child()
    generator.after_fork_in_child()
    ipc_memory.after_fork_in_child()
