"""Virtual time of the fake backend: a discrete simulation of in-order timelines of work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forebay.backends.common.arguments import index_of
from forebay.errors import DeviceError, WrongState

__all__ = ["Command", "FakeClock", "FakeMark", "Timeline"]


class FakeClock:
    """Virtual clock of all timelines of one driver.

    `now` is the virtual time in nanoseconds. `lock` protects everything that shares the clock.
    """

    def __init__(self) -> None:
        self.now: int = 0
        self.lock: threading.RLock = threading.RLock()
        self.timelines: list[Timeline] = []

    def advance(self, ns: int) -> None:
        """Advance the time, running all work that ends within it in order of its end.

        Parameters
        ----------
        ns : int
            Nanoseconds.

        Raises
        ------
        ValueError
            If `ns` is negative.

        Examples
        --------
        >>> clock = FakeClock()
        >>> clock.advance(500)
        >>> clock.now
        500
        """
        index_of(ns, "ns")
        with self.lock:
            until = self.now + ns
            while ends := [
                (end, each) for each in self.timelines if (end := each.next_end()) is not None and end <= until
            ]:
                min(ends, key=lambda item: item[0])[1].step()
            self.now = max(self.now, until)


@dataclass
class FakeMark:
    """A tick with a virtual timestamp."""

    tick: int  #: the tick
    nanoseconds: int | None = None  #: virtual time at which it was reached; None before that


@dataclass
class Command:
    """One piece of work: a wait for a tick of another timeline, a function, a tick, or several of them."""

    duration_ns: int = 0
    work: Callable[[], object] | None = None
    other: Timeline | None = None
    other_tick: int = 0
    mark: FakeMark | None = None
    queued_ns: int = 0


class Timeline:
    """Work of one queue in order, and its reached ticks. `failure` is the first exception of completed work."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.pending: deque[Command] = deque()
        self.signalled: int = 0
        self.failure: BaseException | None = None
        self._tick_times: list[int] = []  # time at which each tick was reached
        self._idle_since = 0  # end of the last completed work
        clock.timelines.append(self)

    def add(self, command: Command) -> None:
        command.queued_ns = self.clock.now
        self.pending.append(command)

    def signal(self) -> FakeMark:
        self.signalled += 1
        mark = FakeMark(self.signalled)
        self.add(Command(mark=mark))
        return mark

    def reached(self) -> int:
        return len(self._tick_times)

    def check_signalled(self, tick: int) -> None:
        if tick > self.signalled:
            raise WrongState(f"tick {tick} was not signalled: the last signalled tick is {self.signalled}")

    def next_end(self) -> int | None:
        """Return when the first pending work ends; None if there is none or it waits for another timeline."""
        if not self.pending:
            return None
        command = self.pending[0]
        start = max(self._idle_since, command.queued_ns)
        if command.other is not None:
            if command.other.reached() >= command.other_tick:
                start = max(start, command.other._tick_times[command.other_tick - 1])  # noqa: SLF001 - another Timeline
            elif command.other.pending:
                return None
        return start + command.duration_ns

    def step(self) -> None:
        """Run the first pending work."""
        end = self.next_end()
        assert end is not None, "no work can run"
        self.clock.now = max(self.clock.now, end)
        self._idle_since = end
        command = self.pending.popleft()
        try:
            if command.work is not None:
                command.work()
            if command.other is not None:
                assert command.other.reached() >= command.other_tick, "waited for work that was dropped"
        except BaseException as failure:  # noqa: BLE001 - any exception is raised by the next wait
            self.failure = self.failure or failure
        if command.mark is not None:
            command.mark.nanoseconds = end
            self._tick_times.append(end)

    def finish(self, tick: int | None = None) -> None:
        """Run all work, or all work before a tick, and the work of other timelines that it waits for."""
        if tick is not None:
            self.check_signalled(tick)
        wanted: list[tuple[Timeline, int | None]] = [(self, tick)]
        while wanted:  # a stack instead of recursion: chains of waits may be long
            timeline, up_to = wanted[-1]
            if not timeline.pending or (up_to is not None and timeline.reached() >= up_to):
                wanted.pop()
            elif timeline.next_end() is not None:
                timeline.step()
            else:
                first = timeline.pending[0]
                assert first.other is not None
                wanted.append((first.other, first.other_tick))

    def after_fork_in_child(self, name: str) -> None:
        """Reach all ticks in a forked child. If work was pending, record its loss as the failure."""
        if not self.pending:
            return
        for command in self.pending:
            if command.mark is not None:
                command.mark.nanoseconds = self.clock.now
                self._tick_times.append(self.clock.now)
        self.pending.clear()
        self.failure = DeviceError(f"{name}: work was pending when this process was forked, and is not done in it")

    def drop(self) -> None:
        """Discard pending work and detach from the clock."""
        self.pending.clear()
        if self in self.clock.timelines:
            self.clock.timelines.remove(self)
