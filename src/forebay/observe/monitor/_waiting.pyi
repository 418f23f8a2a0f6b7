"""The wait of the endpoint's threads: Note [Endpoint in a foreign program]."""

from _thread import LockType
from typing import Self, final

@final
class CollectionFreeSection:
    """A section of one thread at a time, without automatic garbage collection; both end during its waits."""

    def __new__(cls) -> Self: ...
    @property
    def lock(self) -> LockType: ...
    def enter(self) -> None: ...  # RuntimeError if this thread is in the section
    def leave(self) -> None: ...  # RuntimeError if it is not
    def after_fork_in_child(self) -> None: ...  # the section may be entered, and its thread does not exist there
    # Wait for events of descriptors, a second at most. Returns the descriptors with any.
    def wait(self, events: dict[int, int], seconds: float) -> list[int]: ...
