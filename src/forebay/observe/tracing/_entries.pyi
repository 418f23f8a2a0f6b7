"""The part of the recorder that runs at every operation, compiled: what is kept, for whom, and the program's line."""

import threading
from collections.abc import Callable
from typing import Any, Final, final

from typing_extensions import disjoint_base

from forebay.spi import Queue

# What an entry is about: its first field. The second numbers it.
OPERATION: Final[int]  # then thread, asked, queued, code, place in it, what, name, bytes, line, other, begin, end
MOMENT: Final[int]  # then thread, asked or the next, at, code, place in it, what, event, line
WAITED: Final[int]  # the same
MEMORY: Final[int]  # then what `add` was given
RANGE: Final[int]

UNKNOWN: Final[object]  # in place of what `Line.mark` should have given; None is that of what was recorded for a graph

@disjoint_base
class Counters:
    """What was last noted of a device's memory."""

    def __init__(self, current: Callable[[int], int]) -> None: ...

@disjoint_base
class Line:
    """What an operation needs of its queue; it is a number in entries."""

    timed: bool
    logs: bool
    mark: Callable[[], Any]  # of one that logs the number of its last work; else a Mark, or something else with a tick
    last: Any  # what `mark` gave behind its last work

    def __init__(self, key: int, queue: Queue, counters: Counters | None) -> None: ...
    @property
    def key(self) -> int: ...
    @property
    def queue(self) -> Any: ...
    def look(self) -> None: ...  # of a queue that cannot time: what it has done, it has done by now

@final
class Begun:
    """What `queueing` saw; it alone makes one."""

@disjoint_base
class Entries:
    """The last `most` entries, in a ring. `here.key` is the number of the thread that asks.

    `is_ours` says of a file whether its functions are not the program's; it is asked once for each. A subclass has
    `line(queue)`, which gives a Line for a queue that is not in `lines` and adds it; and where an operation `waits`,
    `_complete(line, end)`, where `end` is what `line.mark` gave behind it.
    """

    lines: dict[int, Any]  # by the queue's `id`

    def __init__(
        self, most: int, here: threading.local, is_ours: Callable[[str], bool], waits: bool = False
    ) -> None: ...
    # As forebay.runtime.base.observers.Tracer has them: a stub must repeat the signatures.
    # What is asked of a queue that was closed is nothing.
    def queueing(self, queue: Queue) -> Begun: ...
    def queued(
        self,
        queue: Queue,
        begun: Begun,
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,
        above: int = 0,
    ) -> None: ...
    def host_waited(self, queue: Queue, since: int) -> None: ...
    # The others: `above` is as there.
    def note(
        self, about: int, what: str, event: int = 0, line: Line | None = None, since: int = 0, above: int = 0
    ) -> None: ...
    def count(self, line: Line) -> None: ...  # of its device's memory, if that changed
    def add(self, about: int, fields: tuple[Any, ...]) -> None: ...
    def close(self) -> None: ...  # nothing is kept from now on
    @property
    def closed(self) -> bool: ...
    @property
    def lost(self) -> int: ...  # the oldest, that there was no room for
    def rows(self) -> list[tuple[Any, ...]]: ...  # all of them, the oldest first; ValueError before `close`
    def clear(self) -> None: ...  # closes, and forgets all, lines too
