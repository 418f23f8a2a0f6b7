"""Calls that wait for the first use of a kind, where threads meet; programs' are in tests/process/test_first_use.py."""

from __future__ import annotations

import threading

from forebay.runtime.base.lazy_init import Initialisation


class Door:
    """A lock that tells when somebody comes while it is held."""

    def __init__(self):
        self.lock = threading.RLock()
        self.knocked = threading.Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.knocked.set()
            assert self.lock.acquire(timeout=60)

    def __exit__(self, *args):
        self.lock.release()


def test_a_call_that_comes_during_the_first_use_is_not_lost():
    first, told = Initialisation("host"), []
    first.lock = Door()
    late = threading.Thread(target=first.call, args=[lambda: told.append("late")], daemon=True)

    def queued():
        late.start()
        assert first.lock.knocked.wait(60)
        told.append("queued")

    first.call(queued)
    first.ensure()
    late.join(60)
    assert told == ["queued", "late"]
