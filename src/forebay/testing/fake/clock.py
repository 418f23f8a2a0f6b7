"""Virtual time, and work that takes some: a small simulation, done step by step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forebay.backends.common.arguments import index_of
from forebay.errors import WrongState

__all__ = ["Command", "FakeClock", "FakeMark", "Line"]


class FakeClock:
    """Nanoseconds, the same for all lines of work on it. `lock` is of everything that shares the clock."""

    def __init__(self) -> None:
        self.now = 0
        self.lock = threading.RLock()
        self.lines: list[Line] = []

    def advance(self, ns: int) -> None:
        """Lets time go by, and does all work that ends within it, in the order in which it ends."""
        index_of(ns, "ns")
        with self.lock:
            until = self.now + ns
            while ends := [(end, line) for line in self.lines if (end := line.next_end()) is not None and end <= until]:
                min(ends, key=lambda found: found[0])[1].step()
            self.now = max(self.now, until)


@dataclass
class FakeMark:
    """A tick and the virtual time at which it was reached; None until then."""

    tick: int
    nanoseconds: int | None = None


@dataclass
class Command:
    """One piece of work: it may wait for a tick of another line, may do something, may be a tick of its own."""

    takes: int = 0
    work: Callable[[], object] | None = None
    other: Line | None = None
    other_tick: int = 0
    mark: FakeMark | None = None
    since: int = 0


class Line:
    """Work in order, and the ticks in it that were reached. `failure` is the first exception of the work done."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.pending: deque[Command] = deque()
        self.signalled = 0
        self.failure: BaseException | None = None
        self._times: list[int] = []  # when each tick was reached
        self._free_at = 0  # when all that was done was done
        clock.lines.append(self)

    def add(self, command: Command) -> None:
        command.since = self.clock.now
        self.pending.append(command)

    def signal(self) -> FakeMark:
        self.signalled += 1
        mark = FakeMark(self.signalled)
        self.add(Command(mark=mark))
        return mark

    def reached(self) -> int:
        return len(self._times)

    def check_signalled(self, tick: int) -> None:
        if tick > self.signalled:
            raise WrongState(f"tick {tick} is never reached: the last that was signalled is {self.signalled}")

    def next_end(self) -> int | None:
        """When the first pending work will be done; None if there is none, or it still waits for another line."""
        if not self.pending:
            return None
        command = self.pending[0]
        start = max(self._free_at, command.since)
        if command.other is not None:
            if command.other.reached() >= command.other_tick:
                start = max(start, command.other._times[command.other_tick - 1])  # noqa: SLF001 - another Line
            elif command.other.pending:
                return None
        return start + command.takes

    def step(self) -> None:
        """Does the first pending work."""
        end = self.next_end()
        assert end is not None, "there is nothing that can be done"
        self.clock.now = max(self.clock.now, end)
        self._free_at = end
        command = self.pending.popleft()
        try:
            if command.work is not None:
                command.work()
            if command.other is not None:
                assert command.other.reached() >= command.other_tick, "it waited for work that was dropped"
        except BaseException as failure:  # noqa: BLE001 - whatever it is, the next wait tells it
            self.failure = self.failure or failure
        if command.mark is not None:
            command.mark.nanoseconds = end
            self._times.append(end)

    def finish(self, tick: int | None = None) -> None:
        """Does all work, or all before a tick; and of other lines' work only what that waits for."""
        if tick is not None:
            self.check_signalled(tick)
        wanted: list[tuple[Line, int | None]] = [(self, tick)]
        while wanted:  # a stack and no recursion: lines may wait for one another in long chains
            line, up_to = wanted[-1]
            if not line.pending or (up_to is not None and line.reached() >= up_to):
                wanted.pop()
            elif line.next_end() is not None:
                line.step()
            else:
                first = line.pending[0]
                assert first.other is not None
                wanted.append((first.other, first.other_tick))

    def drop(self) -> None:
        """Forgets what is pending; nothing more will come."""
        self.pending.clear()
        if self in self.clock.lines:
            self.clock.lines.remove(self)
