"""Background thread that completes pending frees of pinned blocks (pinned_use_background_threads)."""

from __future__ import annotations

import _thread
import sys
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from forebay._base.signal_mask import signals_blocked
from forebay.errors import warn_unraisable

__all__ = ["Poller"]

_PERIOD = 1e-4  # seconds, as PyTorch
_STOP_TIMEOUT = 1.0  # seconds


class Poller:
    """Thread that sleeps while no free is pending, ends with its allocator, and never delays interpreter exit.

    A destructor may call `wake` at any moment, so nothing here takes a lock, as in Note [Pinned tables change in one
    step]: not SimpleQueue.put, and no threading.Thread.
    """

    def __init__(self, process_pending_frees: Callable[[], bool]) -> None:
        requests: SimpleQueue[bool] = SimpleQueue()
        self._requests = requests  # True: poll, False: stop
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._claims: dict[str, object] = {}  # the caller whose claim is stored starts the thread
        # A method of the allocator, which would not end while this object or the thread refers to it.
        self._process = weakref.WeakMethod(process_pending_frees, lambda _: requests.put(False))
        self.running: bool = False

    def start(self) -> bool:
        """Start the thread if necessary. Return False if the system cannot create one."""
        if self.running or sys.is_finalizing():
            return bool(self._claims)
        claim, started = object(), list[int]()
        arguments = self._process, self._requests, self._ended
        try:
            if self._claims.setdefault("thread", claim) is claim:
                with signals_blocked():  # `started` is changed in one step: an interrupt comes before or after
                    started.extend(map(_thread.start_new_thread, [self._run], [arguments]))
        except RuntimeError:  # thread limit reached
            return False
        finally:
            if started:
                self.running = True
                self.wake()
            elif self._claims.get("thread") is claim:
                del self._claims["thread"]
        return bool(self._claims)

    def wake(self) -> None:
        """Notify the thread that a free is pending."""
        if self.running:
            self._requests.put(True)

    def stop(self) -> None:
        """Stop the thread and wait until it has ended, or until the timeout if a queue blocks it."""
        if self.running:
            self._requests.put(False)
            try:
                self._ended.get(timeout=_STOP_TIMEOUT)
            except Empty:
                return
            self.running = False

    @staticmethod  # a bound method would keep the poller, and with it the allocator, alive
    def _run(
        process: weakref.WeakMethod[Callable[[], bool]], requests: SimpleQueue[bool], ended: SimpleQueue[None]
    ) -> None:
        try:
            while requests.get():
                while _process(process()):
                    if not requests.empty() and not requests.get():
                        return
                    time.sleep(_PERIOD)
        finally:
            ended.put(None)


def _process(process_pending_frees: Callable[[], bool] | None) -> bool:
    """Complete the frees that are due. Return True if any are still pending."""
    try:
        return process_pending_frees is not None and process_pending_frees()
    except Exception as error:  # noqa: BLE001 -- no caller to raise to, and the thread must continue
        warn_unraisable(f"pinned memory could not be freed: {error}")
        return True
