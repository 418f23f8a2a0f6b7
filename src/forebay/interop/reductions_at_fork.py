"""Registration of the tensors' reductions with `multiprocessing`, before a device is opened.

Set by `forebay._wiring`. Importing `multiprocessing` takes a tenth of the time of importing forebay. A fork waits until
another thread has registered them, as a module that is being imported would stay locked in the child.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from threading import RLock

__all__ = ["after_fork_in_child", "after_fork_in_parent", "before_fork", "register"]

_lock = RLock()


def register() -> None:
    """Import the module that registers the reductions."""
    with _lock, suppress(ImportError, OSError):  # if no file can be opened now, the next device registers them
        import_module("forebay.interop.multiprocessing")


def before_fork() -> None:
    """Wait until no other thread registers."""
    _lock.acquire()


def after_fork_in_parent() -> None:
    """Let other threads register again."""
    with suppress(RuntimeError):  # an interrupt ended `before_fork`
        _lock.release()


def after_fork_in_child() -> None:
    """Replace the lock."""
    global _lock  # noqa: PLW0603 -- the parent's thread that holds it may have another number here
    _lock = RLock()
