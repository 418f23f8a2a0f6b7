"""Releases of memory, as captured graphs see them: Note [Decommit protocol]."""

from typing import Any, Self, final

@final
class ReleaseLog:
    """The releases of one port's memory."""

    @property
    def count(self) -> int: ...
    def note(self, address: int, nbytes: int) -> None: ...  # for all watches, too

@final
class ReleaseWatch:
    """All releases of the process from now on until `stop`, each with the length of the list `work` at that moment."""

    def __new__(cls, work: list[Any]) -> Self: ...
    @property
    def releases(self) -> list[tuple[int, int, int]]: ...  # length, address and size in bytes
    def stop(self) -> None: ...
