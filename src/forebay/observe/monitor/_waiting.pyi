"""The wait of the endpoint's threads: Note [Endpoint in a foreign program]."""

from _thread import LockType
from typing import Self, final

@final
class CollectionFreeSection:
    """A section of one thread at a time, without automatic garbage collection; both end during its waits."""

    def __new__(cls) -> Self: ...
    @property
    def lock(self) -> LockType: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def after_fork_in_child(self) -> None: ...  # the section may be entered, and its thread does not exist there
    def wait(self, events: dict[int, int], seconds: float) -> list[int]: ...  # events by descriptor; those with any
