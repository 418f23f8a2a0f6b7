"""The vendor contract: the protocols that a backend implements. Nothing else in forebay may access a device.

A backend supplies a `Driver`, whose `open` returns a `Port`, whose `queue` returns `Queue` objects. All other protocols
are optional abilities: an object has an ability if it has the methods, which forebay tests with `isinstance`. Without
its docstrings the contract is one page; it takes more than 400 lines because every method is documented in place.

Rules that hold for every method:

* Addresses, handles and ticks are ints. Sizes are ints in bytes, greater than 0.
* Host and device addresses share one address space: `Queue.copy` finds the direction of a copy from the addresses.
* A method that fails raises `DeviceError` with the driver's own code and message, or `OutOfMemory` if the device is
  full. No method returns an error code.
* Invalid arguments raise ValueError or TypeError. A closed object raises `WrongState`.
* No method calls back into forebay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from forebay.profiles import Profile

__all__ = [
    "CapturedGraph",
    "CapturedNode",
    "Captures",
    "Describes",
    "DeviceProps",
    "Draw",
    "Driver",
    "Emulates",
    "ExecutionLog",
    "Growable",
    "Heaps",
    "Launches",
    "LazilyBacked",
    "Managed",
    "Mark",
    "Peers",
    "PinnedHost",
    "PinsInPlace",
    "Port",
    "ProcessUsage",
    "Queue",
    "RandomNumbers",
    "Reopens",
    "Resizable",
    "Sensors",
    "SharedMark",
    "Shares",
    "Telemetry",
    "Timing",
]


_MAX_BYTES = 1 << 62


# ---- Required: properties, queue, port, driver


@dataclass(frozen=True, slots=True)
class Heaps:
    """Heap parameters of a device that allocates memory as heaps of several buffers, as Metal does.

    Such a device gets PyTorch's allocator for MPS instead of the one for CUDA.

    Parameters
    ----------
    recommended : int
        Bytes that the system advises one process to use. The allocator's watermarks are fractions of it.
    longest : int
        Upper limit of a buffer's length in bytes, exclusive.
    unified : bool, default True
        Whether the host uses the same physical memory.
    alignment : int, default 256
        Alignment of buffers in bytes: a power of two, 256 or more.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    recommended: int
    longest: int
    unified: bool = True
    alignment: int = 256

    def __post_init__(self) -> None:
        for name, number in (("recommended", self.recommended), ("longest", self.longest)):
            if type(number) is not int or not 0 < number < _MAX_BYTES:
                raise ValueError(f"{name} must be a number of bytes from 1 to 2**62 - 1, not {number!r}")
        if type(self.alignment) is not int or self.alignment < 256 or self.alignment & (self.alignment - 1):
            raise ValueError(f"alignment must be a power of two, 256 or more, not {self.alignment!r}")


@dataclass(frozen=True, slots=True)
class DeviceProps:
    """Properties of a device.

    Parameters
    ----------
    kind : str
        Device kind, for example "cuda". Equals the driver's kind.
    index : int
        Index of the device among the driver's devices.
    name : str
        Product name.
    total_bytes : int
        Memory capacity in bytes when the device was opened.
    host_visible : bool, default False
        Whether the CPU can read and write the device's memory.
    zero_pages : bool, default False
        Whether device memory is anonymous memory of this process: its pages are zero when they are mapped, and again
        after MADV_DONTNEED.
    fine_segments : bool, default False
        Whether `Port.reserve` takes only microseconds. Large blocks then get segments of their own size instead of
        PyTorch's 20 MiB.
    multi_processor_count : int, default 0
        Number of multiprocessors. Together with `max_threads_per_multi_processor` it determines the launch geometry of
        random fills and so which number each element gets. 0 if the device has no such notion.
    max_threads_per_multi_processor : int, default 0
        Number of resident threads per multiprocessor; 0 if the device has no such notion.
    queue_visible : bool, default False
        Whether host functions that a queue runs may access device memory, even if it is not `host_visible`.
    emulated : bool, default False
        Whether the device is emulated on other hardware.
    pooled_streams : int, default 0
        Number of queues per priority that new streams share round-robin, as CUDA's 32. With 0 each stream has its own
        queue.
    stream_priorities : int, default 4
        Number of stream priorities. With 1, stream ids count up from 1, as for MPS.
    heaps : Heaps, optional
        Heap parameters, if memory is allocated as for Metal instead of as for CUDA.
    details : mapping of str to object, optional
        Further properties under PyTorch's names, such as "major" and "minor".
    """

    kind: str
    index: int
    name: str
    total_bytes: int
    host_visible: bool = False
    zero_pages: bool = False
    fine_segments: bool = False
    multi_processor_count: int = 0
    max_threads_per_multi_processor: int = 0
    queue_visible: bool = False
    emulated: bool = False
    pooled_streams: int = 0
    stream_priorities: int = 4
    heaps: Heaps | None = None
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)


class Queue(Protocol):
    """An in-order queue of a device.

    The methods queue work and return; they do not wait for the work. If queued work fails, the queue continues and the
    next `wait` raises the failure, once.
    """

    @property
    def handle(self) -> int:
        """Number that identifies the queue within its port; the first queue of a port has 0."""

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Copy bytes between any two of host and device memory.

        Parameters
        ----------
        dst : int
            Destination address.
        src : int
            Source address.
        nbytes : int
            Number of bytes.
        """

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        """Set every byte of a range to the same value.

        Parameters
        ----------
        dst : int
            Address of the range.
        byte : int
            Value from 0 to 255.
        nbytes : int
            Length of the range in bytes.
        """

    def signal(self) -> int:
        """Queue the next tick, which is reached when all work queued before it has completed.

        Returns
        -------
        int
            The tick. Ticks of a queue count up from 1.
        """

    def reached(self) -> int:
        """Return the last tick that the queue has reached, without blocking.

        Returns
        -------
        int
            The tick, or 0 before the first.
        """

    def idle(self) -> bool:
        """Return True if all queued work has completed, without blocking.

        Returns
        -------
        bool
            Whether the queue is idle.
        """

    def wait(self, tick: int) -> None:
        """Block the calling thread until the queue has reached a tick.

        Parameters
        ----------
        tick : int
            A tick that `signal` returned; 0 is always reached.

        Raises
        ------
        DeviceError
            If queued work has failed since the last wait.
        WrongState
            If the tick was not signalled or will never be reached.
        """

    def wait_for(self, other: Queue, tick: int) -> None:
        """Make all work that is queued later wait until another queue has reached a tick. Does not block the host.

        Parameters
        ----------
        other : Queue
            A queue of the same kind.
        tick : int
            A tick that `other.signal` returned.
        """

    def close(self, timeout: float | None = None) -> bool:
        """Complete the queued work and close the queue.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which the remaining work is dropped. By default, wait without limit.

        Returns
        -------
        bool
            False if the timeout expired and work was dropped.
        """


class Port(Protocol):
    """An open device."""

    @property
    def props(self) -> DeviceProps:
        """Properties of the device."""

    def reserve(self, nbytes: int) -> int:
        """Allocate a segment of device memory.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        int
            Address, aligned to 2 MiB or more.

        Raises
        ------
        OutOfMemory
            If the device is full.
        """

    def release(self, address: int) -> None:
        """Free a segment.

        Parameters
        ----------
        address : int
            Address that `reserve` returned.
        """

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total memory of the device.

        Returns
        -------
        tuple of int
            Free bytes, total bytes.
        """

    def queue(self, priority: int = 0) -> Queue:
        """Create a queue.

        Parameters
        ----------
        priority : int, default 0
            Scheduling hint; lower numbers are more urgent.

        Returns
        -------
        Queue
            The new queue.
        """

    def close(self) -> None:
        """Close the port's queues and free its memory. Closing again has no effect."""


class Driver(Protocol):
    """All devices of a kind. Constructing a driver opens no device and starts no thread."""

    @property
    def kind(self) -> str:
        """Device kind, which is the name of the entry point."""

    def count(self) -> int:
        """Return the number of devices. Never raises.

        Returns
        -------
        int
            0 if there are no devices or they cannot be counted.
        """

    def why_not(self) -> str:
        """Return the reason why there are no devices.

        Returns
        -------
        str
            One sentence for the user, or "" if there are devices.
        """

    def open(self, index: int) -> Port:
        """Open a device.

        Parameters
        ----------
        index : int
            Index from 0 to `count() - 1`.

        Returns
        -------
        Port
            The open device.

        Raises
        ------
        DeviceError
            If the device does not exist or cannot be opened.
        """


# ---- Abilities of a Queue


class Mark(Protocol):
    """A tick with a timestamp."""

    @property
    def tick(self) -> int:
        """The tick."""


@runtime_checkable
class Timing(Protocol):
    """A Queue that timestamps ticks."""

    def mark(self) -> Mark:
        """Queue the next tick and record the time at which it is reached.

        Returns
        -------
        Mark
            The tick as a mark.
        """

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time between two marks of any queues of this kind.

        Parameters
        ----------
        start : Mark
            A reached mark.
        end : Mark
            A reached mark.

        Returns
        -------
        float
            Milliseconds from `start` to `end`.

        Raises
        ------
        WrongState
            If a mark is not reached.
        """


@runtime_checkable
class ExecutionLog(Protocol):
    """A Queue that logs when its most recent work ran."""

    def last_work_number(self) -> int:
        """Return the number of the most recently queued piece of work. Pieces count from 1; signals do not count.

        Returns
        -------
        int
            The number, or 0 before the first piece of work.
        """

    def log(self, most: int) -> Callable[[int], tuple[int, int]]:
        """Start to log the times of work that is queued from now on.

        Parameters
        ----------
        most : int
            Number of most recent pieces of work to keep.

        Returns
        -------
        callable
            Function from the number of a piece of work to the times at which it began and ended, as
            `time.perf_counter_ns`. A time is 0 if it has not come yet or is no longer kept. The log outlives the queue.
        """


@runtime_checkable
class Launches(Protocol):
    """A Queue that runs host functions in order: Python callables and native functions."""

    def call(self, function: Callable[[], object]) -> None:
        """Queue a Python function.

        Parameters
        ----------
        function : callable
            Function without arguments. If it raises, the work has failed.
        """

    def call_native(self, function: int, argument: int) -> None:
        """Queue a native function of type `int f(void *)`.

        Parameters
        ----------
        function : int
            Address of the function. A result other than 0 is the code of a failure.
        argument : int
            Its argument.
        """


@runtime_checkable
class LazilyBacked(Protocol):
    """A Queue whose device memory may be unbacked, so that host functions must declare where they will write."""

    def ensure_backed(self, *spans: tuple[int, int]) -> None:
        """Ensure that memory is backed before a function that writes to it is queued.

        Parameters
        ----------
        *spans : tuple of int
            Address and size in bytes of each range.

        Raises
        ------
        OutOfMemory
            If the memory cannot be backed. The function must not be queued.
        """


class Draw(NamedTuple):
    """A random fill of one kernel launch: count, distribution, destination and Philox position.

    Thread `t` computes `n` numbers from Philox's words of subsequence `t`, offset `offset + 4 * i`; `n` is 4, or 2 for
    64-bit numbers. Number `lane` of them is written to element `t + threads * (n * i + lane)`. For the law "chances",
    element `i` is computed from word `i % 4` of subsequence `i // 4`.

    Parameters
    ----------
    distribution : str
        Distribution: "uniform", "normal", "exponential", "bernoulli", "integers" or "chances". The last is a Bernoulli
        distribution with one probability per element.
    element : str
        NumPy's name of the dtype, or "bfloat16".
    address : int
        Address of the destination.
    elements : int
        Number of elements.
    axes : tuple of tuple of int
        Length and stride in bytes of each axis of the destination, fastest first. Empty if it is contiguous.
    seed : int
        Philox key.
    offset : int
        Philox offset in words, a multiple of 4.
    threads : int
        Number of threads of the launch, a multiple of 256.
    numbers : tuple of float, default (0.0, 0.0, 0.0)
        Parameters of the distribution: low, high and their difference; mean and standard deviation; rate; or
        probability.
    range : int, default 0
        For "integers": number of possible values; 0 stands for 2**64.
    base : int, default 0
        For "integers": smallest value.
    is_64bit : bool, default False
        For "integers": whether each value is made of 64 random bits.
    probabilities : int, default 0
        For "chances": address of one probability per element, of type double if doubles are drawn, else float.
    """

    distribution: str
    element: str
    address: int
    elements: int
    axes: tuple[tuple[int, int], ...]
    seed: int
    offset: int
    threads: int
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0)
    range: int = 0
    base: int = 0
    is_64bit: bool = False
    probabilities: int = 0


@runtime_checkable
class RandomNumbers(Protocol):
    """A Queue that fills memory with random numbers."""

    def draw(self, draw: Draw) -> None:
        """Queue a random fill.

        Parameters
        ----------
        draw : Draw
            The fill. A probability outside [0, 1] fails asynchronously with CUDA error 710 (device-side assert).
        """


class CapturedNode(NamedTuple):
    """A node of a captured graph: one piece of work.

    Parameters
    ----------
    op : str
        Type of the node: "copy", "fill", "draw", "call" (Python function), "native" (native function), "if", "while",
        "set" (read a condition again) or "again" (end of a loop's body).
    dependencies : tuple of int
        Numbers of the nodes that it depends on.
    details : mapping of str to object
        Arguments of the work, as `forebay.vendor.recorded_work` makes them.
    body : range, default range(0)
        Numbers of the nodes in the body of an "if" or "while".
    """

    op: str
    dependencies: tuple[int, ...]
    details: Mapping[str, Any]
    body: range = range(0)


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
        """Begin to capture.

        Parameters
        ----------
        mode : str, default "global"
            "global", "thread_local" or "relaxed", as in `cudaStreamCaptureMode`.
        queues : mutable mapping of int to int, optional
            Mapping to use as the `queues` of the captured graph.

        Returns
        -------
        Recording
            The graph, which is empty.
        """

    def end_capture(self) -> CapturedGraph:
        """End the capture that this queue began.

        Returns
        -------
        Recording
            The graph, which can be launched.

        Raises
        ------
        DeviceError
            If the capture is invalid: code 901 to 908, as in CUDA.
        """

    def break_capture(self) -> None:
        """Invalidate the capture: nothing more can be captured and `end_capture` raises."""

    def abandon_capture(self) -> None:
        """Discard the capture, if any. Never raises."""


# ---- Abilities of a Port


@runtime_checkable
class PinnedHost(Protocol):
    """A Port that allocates pinned (page-locked) host memory, which queues copy without blocking the host."""

    def pin(self, nbytes: int) -> int:
        """Allocate pinned host memory.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        int
            Address.
        """

    def unpin(self, address: int) -> None:
        """Free pinned host memory.

        Parameters
        ----------
        address : int
            Address that `pin` returned.
        """


@runtime_checkable
class Managed(Protocol):
    """A Port that allocates managed memory, which both its queues and the host can access."""

    def reserve_managed(self, nbytes: int) -> int:
        """Allocate managed memory. It does not count as memory of the device.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        int
            Address, aligned as by `Port.reserve`.

        Raises
        ------
        OutOfMemory
            If there is no memory.
        """

    def release_managed(self, address: int) -> None:
        """Free managed memory.

        Parameters
        ----------
        address : int
            Address that `reserve_managed` returned.
        """


@runtime_checkable
class PinsInPlace(Protocol):
    """A Port that pins existing host memory in place, as `cudaHostRegister` does."""

    def pin_in_place(self, address: int, nbytes: int) -> None:
        """Pin a range of host memory.

        Parameters
        ----------
        address : int
            Address of memory that its owner keeps.
        nbytes : int
            Size in bytes.
        """

    def unpin_in_place(self, address: int) -> None:
        """Unpin a range of host memory.

        Parameters
        ----------
        address : int
            Address that was passed to `pin_in_place`.
        """


@runtime_checkable
class Growable(Protocol):
    """A Port that reserves address space and commits memory to its pages later.

    Addresses and sizes are multiples of the page size. A call may be interrupted at any point and is then repeated or
    undone. So `commit` must accept pages that are committed, which keep their contents, and `decommit` must accept
    pages that are not.
    """

    def reserve_space(self, nbytes: int, page: int) -> int:
        """Reserve address space without memory.

        Parameters
        ----------
        nbytes : int
            Size in bytes, a multiple of `page`.
        page : int
            Page size in bytes.

        Returns
        -------
        int
            Address, aligned as by `Port.reserve`.

        Raises
        ------
        OutOfMemory
            If there is no address space.
        """

    def release_space(self, address: int) -> None:
        """Release address space.

        Parameters
        ----------
        address : int
            Address that `reserve_space` returned.

        Raises
        ------
        WrongState
            If any of its pages is committed.
        """

    def commit(self, address: int, nbytes: int) -> None:
        """Commit memory to a range of pages: to all of them or, if it raises, to none.

        Parameters
        ----------
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.

        Raises
        ------
        OutOfMemory
            If the device is full.
        """

    def decommit(self, address: int, nbytes: int) -> None:
        """Return the memory of a range of pages to the device and keep the address space.

        Parameters
        ----------
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes. The range need not be one that was committed in one call.
        """


@runtime_checkable
class ProcessUsage(Protocol):
    """A Port that reports which processes use its device."""

    def process_memory(self) -> Mapping[int, int]:
        """Return the memory that each process uses.

        Returns
        -------
        mapping of int to int
            Process id to bytes.
        """


@runtime_checkable
class Resizable(Protocol):
    """A Port whose memory capacity can be changed."""

    def set_capacity(self, nbytes: int) -> None:
        """Set the capacity.

        Parameters
        ----------
        nbytes : int
            Capacity in bytes.

        Raises
        ------
        WrongState
            If more than that is reserved.
        """


@runtime_checkable
class Reopens(Protocol):
    """A Port whose device can be opened again in a forked child process."""

    def abandon(self) -> None:
        """Drop the parent's port in the child, without closing it."""


class SharedMark(Protocol):
    """An event that several processes share.

    Each record of the event is identified by a word, which is valid in all processes; 0 stands for no record. The
    caller keeps the event alive until the work that it queued with it is done. Methods raise DeviceError if the process
    that made the event has dropped it.
    """

    @property
    def handle(self) -> bytes:
        """Handle of 64 bytes with which another process opens the event."""

    def record(self, queue: Queue) -> int:
        """Record the event behind the work of a queue.

        Parameters
        ----------
        queue : Queue
            A queue of this process.

        Returns
        -------
        int
            Word of the record.
        """

    def last(self) -> int:
        """Return the word of the last record, by any process.

        Returns
        -------
        int
            The word, or 0.
        """

    def reached(self, word: int) -> bool:
        """Return True if a record has been reached, without blocking.

        Parameters
        ----------
        word : int
            Word of the record.

        Returns
        -------
        bool
            Whether the record has been reached.
        """

    def wait(self, word: int) -> None:
        """Block the calling thread until a record has been reached.

        Parameters
        ----------
        word : int
            Word of the record.

        Raises
        ------
        DeviceError
            If the recording process ended before.
        """

    def wait_for(self, queue: Queue, word: int) -> None:
        """Make all work that is queued later wait until a record has been reached. Does not block the host.

        Parameters
        ----------
        queue : Queue
            The queue that waits. Its work fails if the recording process ends before.
        word : int
            Word of the record.
        """


@runtime_checkable
class Shares(Protocol):
    """A Port whose memory and events other processes of this machine can open.

    Handles have 64 bytes. Opening a stale or forged handle, a handle of the calling process or a handle of a process
    that has ended raises DeviceError.
    """

    def share(self, address: int) -> tuple[bytes, int]:
        """Share the segment that contains an address.

        Parameters
        ----------
        address : int
            Address in memory that `Port.reserve` returned.

        Returns
        -------
        tuple
            Handle of the segment, and offset of the address in the segment in bytes.

        Raises
        ------
        Unsupported
            If memory of this type cannot be shared; for memory of `Growable`, with that ability's name.
        """

    def open_shared(self, handle: bytes) -> tuple[int, int]:
        """Map a segment of another process.

        Parameters
        ----------
        handle : bytes
            Handle of the segment.

        Returns
        -------
        tuple of int
            Address and size in bytes. Valid until `close_shared`.
        """

    def close_shared(self, address: int) -> None:
        """Unmap a segment of another process.

        Parameters
        ----------
        address : int
            Address that `open_shared` returned.
        """

    def make_mark(self) -> SharedMark:
        """Create a shared event.

        Returns
        -------
        SharedMark
            The event.
        """

    def open_mark(self, handle: bytes) -> SharedMark:
        """Open a shared event of another process.

        Parameters
        ----------
        handle : bytes
            Handle of the event.

        Returns
        -------
        SharedMark
            The event.
        """


# ---- Abilities of a Driver


@runtime_checkable
class Describes(Protocol):
    """A Driver that reports the properties of devices without opening them."""

    def describe(self, index: int) -> DeviceProps:
        """Return the properties of a device.

        Parameters
        ----------
        index : int
            Index of the device.

        Returns
        -------
        DeviceProps
            The properties.

        Raises
        ------
        DeviceError
            If the device does not exist.
        """


@runtime_checkable
class Peers(Protocol):
    """A Driver that reports which devices can access each other's memory."""

    def can_access(self, index: int, peer: int) -> bool:
        """Return True if a device can access the memory of another one. Opens neither.

        Parameters
        ----------
        index : int
            Index of the accessing device.
        peer : int
            Index of the device that owns the memory.

        Returns
        -------
        bool
            Whether peer access is possible.
        """


class Sensors(Protocol):
    """Sensor readings of one device. Each call reads anew, opens no device and starts no thread."""

    def uuid(self) -> str:
        """Return the device's UUID.

        Returns
        -------
        str
            For GPUs "GPU-" and the UUID.
        """

    def memory(self) -> tuple[int, int]:
        """Return the memory usage of all processes.

        Returns
        -------
        tuple of int
            Used bytes, total bytes.
        """

    def busy(self) -> tuple[int, int]:
        """Return the utilization over the last second.

        Returns
        -------
        tuple of int
            Percent of the time in which the device computed, and in which it accessed its memory.
        """

    def temperature(self) -> int:
        """Return the temperature.

        Returns
        -------
        int
            Degrees Celsius.
        """

    def power(self) -> int:
        """Return the power draw.

        Returns
        -------
        int
            Milliwatts.
        """

    def clock(self) -> int:
        """Return the clock rate of the multiprocessors.

        Returns
        -------
        int
            Megahertz.
        """

    def processes(self) -> Mapping[int, int | None]:
        """Return the processes that use the device.

        Returns
        -------
        mapping of int to int or None
            Process id to bytes of device memory, None if unknown.
        """


@runtime_checkable
class Telemetry(Protocol):
    """A Driver, or a library, that reads sensors without opening devices.

    Devices have the machine's own indices, which include devices that the environment hides from the process.
    """

    def machine_count(self) -> int:
        """Return the number of devices in the machine.

        Returns
        -------
        int
            Number of devices, hidden ones included.
        """

    def sensors(self, index: int) -> Sensors:
        """Return the sensors of a device.

        Parameters
        ----------
        index : int
            Index of the device in the machine.

        Returns
        -------
        Sensors
            The sensors.

        Raises
        ------
        DeviceError
            If the device does not exist.
        """


@runtime_checkable
class Emulates(Protocol):
    """A Driver whose devices are emulated on this machine."""

    @property
    def profile(self) -> Profile:
        """Profile of the emulated hardware."""

    @property
    def guard(self) -> bool:
        """True if host access to device memory outside queued work ends the process."""
