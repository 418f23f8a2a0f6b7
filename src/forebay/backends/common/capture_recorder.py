"""Graph capture for the ability `Captures`: dependencies, membership of queues, conditions and CUDA's rules.

A backend derives from `CaptureRecorder` and adds how a graph is launched; `capturing_queue` has the part of its queues.

# Note [Ticks of captures]
What is captured is not executed, so its ticks are never reached. They are negative numbers of all captures together:
code that compares ticks tells the two kinds apart, and a queue that waits for a negative tick joins the capture, which
is CUDA's rule for streams and events in terms of the contract. Ticks from before the capture stay valid and can be
queried and waited for, as the allocator does to release memory during it. Waiting for a tick of a capture by the host
is an error, never a wait without an end. Rejected: ticks that go on from those of the queue, which a launch between the
capture and the wait would reach by accident.
Test: tests/runtime/graphs/test_replay.py::test_graph_captures_joined_stream
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from forebay.backends.common._releases import ReleaseWatch
from forebay.backends.common.arguments import address_of
from forebay.backends.common.cuda_errors import (
    CAPTURE_BROKEN,
    CAPTURE_FORBIDS,
    CAPTURE_ISOLATED,
    CAPTURE_MERGE,
    CAPTURE_OF_ANOTHER_THREAD,
    CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED,
    CAPTURED_EVENT,
)
from forebay.errors import DeviceError, Unsupported, WrongState
from forebay.spi import CapturedNode, Queue

__all__ = ["CaptureRecorder", "CapturedMark", "wait_in_capture"]

_Frontier = frozenset[int]  # the nodes on which the next node of a queue depends
_ticks = count(-1, -1)  # Note [Ticks of captures]


class CapturedMark(NamedTuple):
    """A tick of a capture. It has no timestamp, as each launch has its own."""

    tick: int  # the tick, below 0


class _Member(Queue, Protocol):
    """A queue that can be captured."""

    @property
    def capture(self) -> Any: ...  # the CaptureRecorder that the queue takes part in, or None
    def check_usable(self) -> None: ...  # raises Forked, or WrongState if the queue was closed
    def driver_error(self, code: int, call: str) -> DeviceError: ...  # the error for CUDA's error code
    def enter_capture(self, recording: Any) -> None: ...  # see `capturing_queue.CaptureMixin`
    def exit_capture(self) -> None: ...


_Q = TypeVar("_Q", bound=_Member)


class CaptureRecorder(ABC, Generic[_Q]):
    """A captured graph, during and after its capture; implements `spi.CapturedGraph` except for `launch`.

    A subclass implements `launch`, which first calls `add_to_capture`. It may override `finished` to prepare the
    launch, and `attach`, `detach` and `record` to have the driver capture the work, too.

    Parameters
    ----------
    first : Queue
        The queue that begins and ends the capture.
    mode : str
        "global", "thread_local" or "relaxed". Unless it is "relaxed", the current thread must end the capture.
    queues : mutable mapping of int to int
        Mapping to use as `queues`.
    """

    def __init__(self, first: _Q, mode: str, queues: MutableMapping[int, int]) -> None:
        self.queues = queues
        self.work: list[CapturedNode] = []
        self.retained: list[object] = []
        self.lock: threading.RLock = threading.RLock()
        self._first = first
        self._thread = None if mode == "relaxed" else threading.get_ident()  # the thread that must end the capture
        self._members: dict[int, _Q] = {}
        self._frontiers: dict[int, _Frontier] = {}
        self._bodies: dict[int, list[int]] = {}  # by queue: the conditions whose bodies are open
        self._signalled: dict[int, _Frontier] = {}  # by tick
        self._preceding: dict[int, set[int]] = {}  # by queue: nodes that precede its next node, as far as asked for
        self._broken = self._ended = False
        self.check(first, "begin_capture")
        self.watch: ReleaseWatch = ReleaseWatch(self.work)  # of memory that is released during the capture
        try:
            self.add_queue(first, frozenset())
        except BaseException:
            self.watch.stop()
            raise

    def attach(self, queue: _Q) -> None:
        """Set the queue's `capture` to this graph.

        Parameters
        ----------
        queue : Queue
            A queue that joins the capture.
        """
        queue.enter_capture(self)

    def detach(self, queue: _Q) -> None:
        """Set the queue's `capture` to None.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        """
        queue.exit_capture()

    def record(self, queue: _Q, op: str, details: Mapping[str, Any]) -> None:
        """Capture the work of one call of a queue.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        op : str
            The operation: "copy", "fill", "draw", "strided", "call" or "native".
        details : mapping
            Its details (see `recorded_work`).
        """
        self.add(queue, op, **details)

    def finished(self) -> None:
        """Prepare the launch. Called once, when the capture is complete; an exception invalidates it."""

    @abstractmethod
    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        """Queue all nodes; see `spi.CapturedGraph.launch`.

        Parameters
        ----------
        queue : Queue
            The queue.
        sources : sequence of tuple of int, optional
            Seed and offset of each source of random numbers.
        """

    # ---- During the capture

    def add_queue(self, queue: _Q, front: _Frontier) -> None:
        """Add a queue to the capture.

        Parameters
        ----------
        queue : Queue
            The queue.
        front : frozenset of int
            Nodes on which its next node depends.
        """
        tick = queue.reached() if queue.idle() else queue.signal()  # the former starts no thread
        with self.lock:
            self.queues[queue.handle] = tick
            self._members[queue.handle] = queue
            self._frontiers[queue.handle] = front
            try:
                self.attach(queue)
            except BaseException:
                for each in (self.queues, self._members, self._frontiers):
                    each.pop(queue.handle, None)
                raise

    def check(self, queue: _Q, call: str) -> None:
        """Check that more work can be captured.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        call : str
            Name of the calling method, for the error.

        Raises
        ------
        DeviceError
            If the capture is invalid, or was ended by another thread: code 901.
        Forked
            If the queue belongs to the parent process.
        WrongState
            If the queue was closed.
        """
        queue.check_usable()
        if self._broken or self._ended:  # Note [Calls when a capture ends]
            raise queue.driver_error(CAPTURE_BROKEN, call)

    def add(self, queue: _Q, what: str, **details: Any) -> int:
        """Append a node that depends on the queue's previous work, and return its number.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        what : str
            Type of the node; see `spi.CapturedNode`.
        **details : object
            Arguments of the work.
        """
        with self.lock:
            self.check(queue, what)
            number = len(self.work)
            self.work.append(CapturedNode(what, tuple(sorted(self._frontiers[queue.handle])), details))
            self._frontiers[queue.handle] = frozenset((number,))
        return number

    def signal(self, queue: _Q) -> int:
        """Return a new tick, below 0, behind the captured work of a queue; implements `Queue.signal`.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        """
        with self.lock:
            self.check(queue, "signal")
            tick = next(_ticks)
            self._signalled[tick] = self._frontiers[queue.handle]
        return tick

    def has_tick(self, tick: int) -> bool:
        """Return True if a tick belongs to this capture.

        Parameters
        ----------
        tick : int
            Any tick.
        """
        return tick in self._signalled

    def add_event(self, queue: Queue, op: str, event: int, function: Callable[[Queue], object]) -> None:
        """Capture the record of an event, or a wait for one; see `spi.CapturedGraph.add_event`.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        op : str
            "record_event" or "wait_event".
        event : int
            Number of the event.
        function : callable
            Function that each launch calls with its queue.

        Raises
        ------
        Unsupported
            If the queue captures the body of a condition, which is executed without the host.
        """
        member = self._member(queue)
        if self._bodies.get(member.handle):
            raise Unsupported("the body of a condition cannot record external events", ability="Captures")
        self.add(member, op, event=event, function=function)

    def precedes(self, tick: int, queue: Queue) -> bool:
        """Return True if everything that a queue captures from now on depends on the work before a tick.

        Parameters
        ----------
        tick : int
            A tick of this capture.
        queue : Queue
            A member of the capture.

        Returns
        -------
        bool
            Whether the nodes before the tick precede all later nodes of the queue.
        """
        member = self._member(queue)
        with self.lock:
            done = self._preceding.setdefault(member.handle, set())
            done |= self._with_ancestors(self._frontiers[member.handle] - done, done)
            return self._signalled[tick] <= done

    def add_dependency(self, queue: _Q, tick: int) -> None:
        """Make later nodes of a queue depend on a tick.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        tick : int
            A tick of this capture.
        """
        with self.lock:
            self.check(queue, "wait_for")
            nodes = self._signalled[tick]
            if not nodes <= self._with_ancestors(self._frontiers[queue.handle]):
                self._frontiers[queue.handle] |= nodes

    def forbidden(self, queue: _Q, call: str) -> DeviceError:
        """Invalidate the capture because of a call that a capture does not permit, such as waiting.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        call : str
            Name of the method.

        Returns
        -------
        DeviceError
            The error to raise: code 900, or 901 if the capture was invalid before.
        """
        return self.fail(queue, CAPTURE_FORBIDS, call)

    def fail(self, queue: _Q, code: int, call: str) -> DeviceError:
        """Invalidate the capture.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        code : int
            CUDA's error code.
        call : str
            Name of the method.

        Returns
        -------
        DeviceError
            The error to raise: of that code, or 901 if the capture was invalid before.
        """
        if self._broken:
            return queue.driver_error(CAPTURE_BROKEN, call)
        self._broken = True
        return queue.driver_error(code, call)

    def invalidate(self) -> None:
        """Invalidate the capture without an error."""
        self._broken = True

    def retain(self, *objects: object) -> None:
        """Keep objects alive for as long as the graph.

        Parameters
        ----------
        *objects : object
            The objects.
        """
        self.retained.extend(objects)

    # ---- Conditions; see `spi.CapturedGraph`

    def begin_if(self, queue: Queue, address: int) -> None:
        """Begin a conditional body.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        address : int
            Address of the condition, a byte.
        """
        self._begin(queue, "if", address)

    def begin_while(self, queue: Queue, address: int) -> None:
        """Begin a loop body.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        address : int
            Address of the condition, a byte.
        """
        self._begin(queue, "while", address)

    def update_condition(self, queue: Queue, address: int) -> None:
        """Read the condition of the innermost body again.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        address : int
            Address of the condition, a byte.

        Raises
        ------
        WrongState
            If the queue captures no body.
        """
        member = self._member(queue)
        self.add(member, "set", address=address_of(address), of=self._open_bodies(member)[-1])

    def end_body(self, queue: Queue) -> None:
        """End the innermost body.

        Parameters
        ----------
        queue : Queue
            A member of the capture.

        Raises
        ------
        DeviceError
            If the body contains a node that does not depend on the condition: code 905.
        WrongState
            If the queue captures no body.
        """
        member = self._member(queue)
        self.check(member, "end_body")
        condition = self._open_bodies(member).pop()
        with self.lock:
            node = self.work[condition]
            if node.op == "while":
                self.add(member, "again", of=condition)
            body = range(condition + 1, len(self.work))
            independent = [number for number in body if not self._depends_on(number, condition)]
            if independent:
                raise self.fail(member, CAPTURE_ISOLATED, "end_body")
            self.work[condition] = node._replace(body=body)
            self._frontiers[member.handle] = frozenset((condition,)) if not body else self._frontiers[member.handle]

    def _begin(self, queue: Queue, what: str, address: int) -> None:
        member = self._member(queue)
        number = self.add(member, what, address=address_of(address))
        self._bodies.setdefault(member.handle, []).append(number)

    def _open_bodies(self, queue: _Q) -> list[int]:
        found = self._bodies.get(queue.handle)
        if not found:
            raise WrongState("the queue is not capturing the body of a condition")
        return found

    def _member(self, queue: Queue) -> _Q:
        found = self._members.get(queue.handle)
        if found is not queue:
            raise WrongState("the queue does not take part in this capture")
        return found

    def _depends_on(self, number: int, condition: int) -> bool:
        return condition in self._with_ancestors(frozenset((number,)))

    # ---- End of the capture

    def end(self, queue: _Q) -> None:
        """End the capture; implements `Captures.end_capture`.

        Parameters
        ----------
        queue : Queue
            The queue that began the capture.

        Raises
        ------
        DeviceError
            If the capture is invalid or cannot end here: code 901, 903, 904 or 908.
        """
        if self._thread not in (None, threading.get_ident()):
            raise queue.driver_error(CAPTURE_OF_ANOTHER_THREAD, "end_capture")
        if queue is not self._first:
            raise self.fail(queue, CAPTURE_UNMATCHED, "end_capture")
        with self.lock:
            done = self._with_ancestors(self._frontiers[queue.handle])
            joined = all(front <= done for front in self._frontiers.values())
            self.detach_all()
        try:
            if self._broken:
                raise queue.driver_error(CAPTURE_BROKEN, "end_capture")
            self._broken = True  # until the capture is complete
            if not joined or any(self._bodies.values()):
                raise queue.driver_error(CAPTURE_UNJOINED, "end_capture")
            self.finished()
            self._broken = False
        finally:
            self.watch.stop()

    def detach_all(self) -> None:
        """Detach all queues, which execute their work again."""
        with self.lock:
            self._ended = True
            for queue in self._members.values():
                if queue.capture is self:
                    self.detach(queue)
            self._members.clear()
            self.queues.clear()
            if self._broken:  # else `finished` reads it first
                self.watch.stop()

    def _with_ancestors(self, nodes: _Frontier, known: Collection[int] = ()) -> set[int]:
        """Return the nodes and all nodes that they depend on, directly or not, up to those of `known`."""
        found, pending = set[int](), list(nodes)
        while pending:
            number = pending.pop()
            if number not in found and number not in known:
                found.add(number)
                pending.extend(self.work[number].dependencies)
        return found

    # ---- Launch

    def add_to_capture(self, queue: _Q, sources: Sequence[tuple[int, int]]) -> bool:
        """Add the graph to the queue's capture if the queue is capturing; `launch` calls this first.

        Parameters
        ----------
        queue : Queue
            The queue on which the graph is launched.
        sources : sequence of tuple of int
            Seed and offset of each source of random numbers.

        Returns
        -------
        bool
            True if the queue is capturing; then there is nothing left to launch.

        Raises
        ------
        WrongState
            If the capture of this graph did not end successfully.
        """
        if not self._ended or self._broken:
            raise WrongState("the graph cannot be launched: its capture did not end successfully")
        if queue.capture is None:
            return False
        queue.capture.add_child_graph(queue, self, sources)
        return True

    def add_child_graph(self, queue: _Q, other: CaptureRecorder[_Q], sources: Sequence[tuple[int, int]]) -> None:
        """Add the nodes of another graph to this capture.

        Parameters
        ----------
        queue : Queue
            A member of the capture.
        other : CaptureRecorder
            The graph.
        sources : sequence of tuple of int
            Source and offset, in this capture, of each source of random numbers of `other`.
        """
        with self.lock:
            self.check(queue, "launch")
            front, start = self._frontiers[queue.handle], len(self.work)
            leaves = set(range(len(other.work)))
            for what, after, details, body in other.work:
                leaves.difference_update(after)
                shifted = tuple(start + number for number in after) or tuple(sorted(front))
                more = dict(details)
                if "of" in more:
                    more["of"] += start
                if what == "draw":
                    source, offset = sources[more["source"]]
                    more |= {"source": source, "offset": more["offset"] + offset}
                self.work.append(CapturedNode(what, shifted, more, range(start + body.start, start + body.stop)))
            if leaves:
                self._frontiers[queue.handle] = frozenset(start + number for number in leaves)
            self.retain(other)


def wait_in_capture(queue: _Member, other: _Member, tick: int) -> bool:
    """Apply CUDA's capture rules to `Queue.wait_for`; a queue that waits for a tick of a capture joins it.

    Parameters
    ----------
    queue : Queue
        The queue that waits.
    other : Queue
        The queue that signalled the tick.
    tick : int
        The tick.

    Returns
    -------
    bool
        False if no capture is involved, so that the queue itself must wait.

    Raises
    ------
    DeviceError
        If the wait is not permitted: code 901, 902, 905 or 907.
    """
    capture: CaptureRecorder[Any] | None = queue.capture
    other_capture: CaptureRecorder[Any] | None = other.capture
    if other_capture is not None and not other_capture.has_tick(tick):
        other_capture = None
    if capture is None:
        if tick >= 0:
            return False
        if other_capture is None:
            raise queue.driver_error(CAPTURED_EVENT, "wait_for")
        other_capture.check(queue, "wait_for")
        other_capture.add_queue(queue, frozenset())
        other_capture.add_dependency(queue, tick)
        return True
    if tick >= 0:
        raise capture.fail(queue, CAPTURE_ISOLATED, "wait_for")
    if capture.has_tick(tick):
        capture.add_dependency(queue, tick)
        return True
    if other_capture is not None:
        other_capture.invalidate()
        raise capture.fail(queue, CAPTURE_MERGE, "wait_for")
    raise capture.fail(queue, CAPTURED_EVENT, "wait_for")
