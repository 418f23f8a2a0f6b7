"""Destructors that no signal handler or RecursionError can split, and single steps for them.

Note [Interrupts arrive late] (_late_errors.pxd)
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

class Disposable:
    """Base class of objects with a destructor, which calls `_dispose`.

    `_dispose` is called again after an interrupt, and once more after a fault, until it returns: it must be repeatable,
    and expect attributes that an interrupted `__init__` has not set. It is not called while the interpreter exits.
    """

    def _dispose(self) -> None: ...

# Return whether a signal handler has raised an exception: what handles the errors of a destructor's steps passes it on.
def interrupts(error: BaseException) -> bool: ...

# Call a function with each element of a list, which is removed first; in one step if it is a function of C.
def call_with_all(function: Callable[[_T], object], arguments: list[_T]) -> None: ...

# Call the function that `take` removes from a table and returns, if any.
def call_taken(take: Callable[..., Callable[[], object] | None], *arguments: Any) -> None: ...

# Move what is in a list to the end of a list or a deque.
def move_all(source: list[_T], target: list[_T] | deque[_T]) -> None: ...
