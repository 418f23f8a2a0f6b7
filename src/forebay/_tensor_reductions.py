"""Registration of the tensors' reductions with `multiprocessing`, before a device is opened.

Importing this module adds the registration to BEFORE_OPENING: importing `multiprocessing` takes a tenth of the time of
importing forebay. A fork waits until another thread has registered them, as a module that is being imported would stay
locked in the child.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from threading import RLock

from forebay.runtime.devices.open_device import BEFORE_OPENING

_lock = RLock()


def _register() -> None:
    with _lock, suppress(ImportError, OSError):  # if no file can be opened now, the next device registers them
        import_module("forebay.interop.multiprocessing")


def _before_fork() -> None:
    _lock.acquire()


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # an interrupt ended `_before_fork`
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 -- the parent's thread that holds it may have another number here
    _lock = RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
BEFORE_OPENING.append(_register)
