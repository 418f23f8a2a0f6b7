"""Graph capture, an optional ability of queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from forebay.spi.required import Queue

__all__ = ["CapturedGraph", "CapturedNode", "Captures"]


class CapturedNode(NamedTuple):
    """A node of a captured graph: one piece of work."""

    #: Type of the node. One of "copy", "fill", "draw", "strided" (strided copy or fill with an element), "call" (Python
    #: function), "native" (native function), "external" (work that another library launched on the same stream), "if",
    #: "while", "set" (read a condition again), "again" (end of a loop's body), "record_event" or "wait_event".
    op: str
    dependencies: tuple[int, ...]  #: numbers of the nodes that it depends on
    details: Mapping[str, Any]  #: arguments of the work, as `forebay.vendor.recorded_work` makes them
    body: range = range(0)  #: numbers of the nodes in the body of an "if" or "while"


class CapturedGraph(Protocol):
    """A captured graph: the work of queues, recorded instead of executed."""

    @property
    def queues(self) -> Mapping[int, int]:
        """Queues that take part now: handle to the tick that follows the work queued before the capture."""

    @property
    def work(self) -> Sequence[CapturedNode]:
        """The nodes, in the order in which they were captured."""

    def retain(self, *objects: object) -> None:
        """Keep objects alive for as long as the graph may be launched.

        Parameters
        ----------
        *objects : object
            The objects.
        """

    def precedes(self, tick: int, queue: Queue) -> bool:
        """Return True if everything that a queue captures from now on depends on the work before a tick.

        Parameters
        ----------
        tick : int
            A tick of this capture.
        queue : Queue
            A capturing queue.

        Returns
        -------
        bool
            Whether memory that this work uses may be used again.
        """

    def add_event(self, queue: Queue, op: str, event: int, function: Callable[[Queue], object]) -> None:
        """Capture the record of an event, or a wait for one, which each launch repeats.

        Parameters
        ----------
        queue : Queue
            A capturing queue.
        op : str
            "record_event" or "wait_event".
        event : int
            Number of the event.
        function : callable
            Function that `launch` calls with its queue when it has queued the nodes before this one, and none of
            those that depend on it. It signals the queue or makes it wait.
        """

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        """Queue all nodes, in an order that their dependencies allow and after earlier launches of this graph.

        Parameters
        ----------
        queue : Queue
            The queue on which to launch. If it is capturing, the graph becomes a part of that capture.
        sources : sequence of tuple of int, optional
            Seed and offset of each source of random numbers that the graph's draws use.
        """

    def begin_if(self, queue: Queue, address: int) -> None:
        """Begin a conditional body, which is executed if a byte is not 0.

        Parameters
        ----------
        queue : Queue
            A capturing queue.
        address : int
            Address of the byte, which is read when the node is executed.
        """

    def begin_while(self, queue: Queue, address: int) -> None:
        """Begin a loop body, which is executed while a byte is not 0.

        Parameters
        ----------
        queue : Queue
            A capturing queue.
        address : int
            Address of the byte, which is read before the first iteration and by `update_condition`.
        """

    def update_condition(self, queue: Queue, address: int) -> None:
        """Read the condition of the innermost body again.

        Parameters
        ----------
        queue : Queue
            A queue that is capturing a body.
        address : int
            Address of the byte.
        """

    def end_body(self, queue: Queue) -> None:
        """End the innermost body of a queue.

        Parameters
        ----------
        queue : Queue
            A queue that is capturing a body.
        """


@runtime_checkable
class Captures(Protocol):
    """A Queue whose work can be captured into a graph.

    Between `begin_capture` and `end_capture` nothing that is queued is executed, and `signal` returns ticks below 0. A
    queue that waits for such a tick joins the capture, and the first queue must wait for it before the capture ends.
    The seed of a captured draw is the number of its source of random numbers, and its offset is relative to the
    source's offset. What cannot be captured raises DeviceError with CUDA's code and, except for invalid arguments,
    invalidates the capture.
    """

    @property
    def capture(self) -> CapturedGraph | None:
        """The capture that the queue takes part in, if any."""

    def begin_capture(self, mode: str = "global", queues: MutableMapping[int, int] | None = None) -> CapturedGraph:
        """Begin to capture, and return the graph, which is empty.

        Parameters
        ----------
        mode : str, default "global"
            "global", "thread_local" or "relaxed", as in `cudaStreamCaptureMode`.
        queues : mutable mapping of int to int, optional
            Mapping to use as the `queues` of the captured graph.
        """

    def end_capture(self) -> CapturedGraph:
        """End the capture that this queue began, and return the graph, which can be launched.

        Raises
        ------
        DeviceError
            If the capture is invalid: code 901 to 908, as in CUDA.
        """

    def break_capture(self) -> None:
        """Invalidate the capture: nothing more can be captured and `end_capture` raises."""

    def abandon_capture(self) -> None:
        """Discard the capture, if any. Never raises."""
