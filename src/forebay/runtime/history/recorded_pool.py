"""Base class of the allocators: a native pool, with what its history, snapshots and error texts tell of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from forebay._core import Pool
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.history.labels import Labels
from forebay.runtime.history.program_history import ProgramHistory
from forebay.spi import Port

__all__ = ["RecordedPool"]


class RecordedPool(Pool, ABC):
    """The native pool of one device, whose history can be recorded."""

    def __init__(self, name: str, port: Port) -> None:
        self.name = name
        self.port = port
        self.limit: int | None = None  # of reserved bytes
        self.labels: Labels = Labels()  # of the history, if it is recorded
        self.program: ProgramHistory | None = None  # while a command records the whole history
        self.whole: tuple[int, int] = (0, 0)  # then the entries and the depth of stacks that the command wants

    @property
    def program_records(self) -> bool:
        """True if the program records the history."""
        return self.recording if self.program is None else self.program.is_recording

    @abstractmethod
    def id_of(self, pool_number: int) -> PoolId:
        """Return the id of the pool with this number in the native pool."""

    @abstractmethod
    def snapshot_notes(self) -> dict[str, Any]:
        """Return the policy as a snapshot stores it for replay."""

    def _annotation_id(self) -> int:  # called by the native pool
        return self.labels.current_number()
