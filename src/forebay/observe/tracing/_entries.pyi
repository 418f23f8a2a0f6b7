"""The recorder's per-operation path, compiled: which entries are kept, and the program's source line of each."""

import threading
from collections.abc import Callable
from typing import Any, Final, final

from typing_extensions import disjoint_base

from forebay.spi import Queue

# Types of entries, the first field of a row. The second field is the entry's number. Tracks are given by their keys.
# OPERATION: thread, begin and end time of queueing, code, offset, operation, name, bytes, track, other track, begin
# mark, end mark. MOMENT and WAITED: thread, begin and end time, code, offset, text, event, track.
OPERATION: Final[int]
MOMENT: Final[int]
WAITED: Final[int]
MEMORY: Final[int]  # the fields passed to `add`
RANGE: Final[int]

UNKNOWN: Final[object]  # replaces a mark that could not be taken; None is the mark of work recorded for a graph

@disjoint_base
class MemoryCounters:
    """Last recorded memory statistics of a device."""

    def __init__(self, current: Callable[[int], int]) -> None: ...

@disjoint_base
class QueueTrack:
    """Per-queue state of the recorder; entries refer to it by `key`."""

    timed: bool
    logs: bool
    # If `logs`, returns the number of the last work item; else a Mark or another object with a tick.
    mark: Callable[[], Any]
    last: Any  # the mark after the queue's last work

    def __init__(self, key: int, queue: Queue, counters: MemoryCounters | None) -> None: ...
    @property
    def key(self) -> int: ...
    @property
    def queue(self) -> Any: ...
    def observe_ticks(self) -> None: ...  # for a queue without timing: all work reached by now gets the current time

@final
class OperationStart:
    """State of an operation between `queueing`, which creates it, and `queued`."""

@disjoint_base
class Entries:
    """Ring of the last `most` entries. `thread_state.key` is the number of the calling thread.

    `is_internal` returns True for source files whose functions are skipped as internal; it is called once per file. A
    subclass implements `track(queue)`, which returns and registers the QueueTrack of a queue missing from
    `queue_tracks`, and, for `wait_until_completed`, `_complete(track, end)`, called after each operation with its end
    mark.
    """

    queue_tracks: dict[int, Any]  # by the queue's `id`

    def __init__(
        self,
        most: int,
        thread_state: threading.local,
        is_internal: Callable[[str], bool],
        wait_until_completed: bool = False,
    ) -> None: ...
    # Signatures of forebay.runtime.base.observers.Tracer, which a stub must repeat. Closed queues are ignored.
    def queueing(self, queue: Queue) -> OperationStart: ...
    def queued(
        self,
        queue: Queue,
        begun: OperationStart,
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,
    ) -> None: ...
    def host_waited(self, queue: Queue, since: int) -> None: ...
    def note(
        self, entry_type: int, what: str, event: int = 0, track: QueueTrack | None = None, since: int = 0
    ) -> None: ...
    def count(
        self, track: QueueTrack
    ) -> None: ...  # record the memory statistics of the queue's device if they changed
    def add(self, entry_type: int, fields: tuple[Any, ...]) -> None: ...
    def close(self) -> None: ...  # stop recording
    @property
    def closed(self) -> bool: ...
    @property
    def lost(self) -> int: ...  # number of oldest entries that were overwritten
    def rows(self) -> list[tuple[Any, ...]]: ...  # all entries, oldest first; ValueError before `close`
    def clear(self) -> None: ...  # close, and drop all entries and tracks
