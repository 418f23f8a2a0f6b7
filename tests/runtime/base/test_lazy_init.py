"""Calls queued until initialisation, with several threads. See also tests/process/test_first_use.py."""

from __future__ import annotations

import threading

from forebay.runtime.base.lazy_init import LazyInit


class WatchedLock:
    """Reentrant lock that sets an event when another thread tries to acquire it while it is held."""

    def __init__(self):
        self.lock = threading.RLock()
        self.contended = threading.Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.contended.set()
            assert self.lock.acquire(timeout=60)

    def __exit__(self, *args):
        self.lock.release()


def test_call_during_initialisation_runs_once_after_queued_calls():
    init, calls = LazyInit("cpu"), []
    init.lock = WatchedLock()
    late = threading.Thread(target=init.call, args=[lambda: calls.append("late")], daemon=True)

    def queued():
        late.start()
        assert init.lock.contended.wait(60)
        calls.append("queued")

    init.call(queued)
    init.ensure()
    late.join(60)
    assert calls == ["queued", "late"]
