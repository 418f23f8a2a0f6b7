"""What a backend must supply. Nothing else in forebay may talk to a device.

Addresses, handles and ticks are ints; sizes are bytes, > 0. A method that fails raises DeviceError with the driver's
own code and words (OutOfMemory where the device is full); it never returns a code. No method may call back into
forebay. Host and device addresses are one space: `copy` finds out by itself which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from forebay.profiles import Profile

__all__ = [
    "Captures",
    "Describes",
    "DeviceProps",
    "Draw",
    "Driver",
    "Emulates",
    "Foresees",
    "Growable",
    "Heaps",
    "Launches",
    "Logs",
    "Managed",
    "Mark",
    "Occupied",
    "Peers",
    "PinnedHost",
    "PinsInPlace",
    "Port",
    "Queue",
    "Randoms",
    "Recorded",
    "Recording",
    "Reopens",
    "Resizable",
    "Sensors",
    "SharedMark",
    "Shares",
    "Telemetry",
    "Timing",
]


_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Heaps:
    """A device whose memory comes as heaps, each holding several buffers, as Metal's: PyTorch's rules for MPS apply.

    `recommended` bytes are what the system advises one process to use, of which the watermarks are shares; a buffer is
    shorter than `longest`. `unified`: the host uses the same memory. `alignment` is that of buffers, a power of two,
    256 or more. ValueError for numbers that are none of this.
    """

    recommended: int
    longest: int
    unified: bool = True
    alignment: int = 256

    def __post_init__(self) -> None:
        for name, number in (("recommended", self.recommended), ("longest", self.longest)):
            if type(number) is not int or not 0 < number < _MOST_BYTES:
                raise ValueError(f"{name} is a number of bytes, not {number!r}")
        if type(self.alignment) is not int or self.alignment < 256 or self.alignment & (self.alignment - 1):
            raise ValueError(f"alignment is a power of two, 256 or more, not {self.alignment!r}")


@dataclass(frozen=True, slots=True)
class DeviceProps:
    """What a device is.

    `total_bytes` is its capacity when opened; `host_visible`, that the CPU reads its memory; `zero_pages`, that this
    memory is anonymous pages of the process, which are zero when they come and again after they were advised away;
    `fine_segments`, that `reserve` costs microseconds, so that large blocks get segments of their own size instead of
    PyTorch's 20 MiB. How many multiprocessors a GPU has, and how many threads each runs, decides which of its numbers a
    random fill gives to which element; 0 where that means nothing.

    `queue_visible`: the functions that a queue runs may touch its memory, be it `host_visible` or not. `emulated`: the
    device is another one than it says. `pooled_streams`: new streams take so many queues of each priority in turn, as
    CUDA's do; 0: each has its own. `stream_priorities`: how many of those there are; with one, streams have numbers
    from 1 on, as MPS's. `heaps`: how its memory is had, if not as CUDA's. `details`: more, by PyTorch's names.
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
    """One in-order queue. A failure of queued work is raised by the next `wait`, once."""

    @property
    def handle(self) -> int: ...  # names the queue among its port's; the first queue of a port is 0
    def copy(self, dst: int, src: int, nbytes: int) -> None: ...
    def fill(self, dst: int, byte: int, nbytes: int) -> None: ...
    def signal(self) -> int: ...  # "reach the next tick here"; returns it. Ticks count from 1
    def reached(self) -> int: ...  # never blocks
    def idle(self) -> bool: ...  # is all that was queued done? never blocks
    def wait(self, tick: int) -> None: ...  # the host waits
    def wait_for(self, other: Queue, tick: int) -> None: ...  # this queue waits, the host does not
    def close(self, timeout: float | None = None) -> bool: ...  # finishes what is queued, or False: it dropped the rest


class Port(Protocol):
    """One open device."""

    @property
    def props(self) -> DeviceProps: ...
    def reserve(self, nbytes: int) -> int: ...  # an address, aligned to 2 MiB or better; OutOfMemory when full
    def release(self, address: int) -> None: ...  # exactly what `reserve` gave
    def memory_info(self) -> tuple[int, int]: ...  # free, total
    def queue(self, priority: int = 0) -> Queue: ...  # lower is more urgent, a hint
    def close(self) -> None: ...  # closes its queues, returns its memory; twice is once


class Driver(Protocol):
    """All devices of a kind. Making one opens nothing and starts nothing."""

    @property
    def kind(self) -> str: ...
    def count(self) -> int: ...  # 0 when there are none; never raises
    def why_not(self) -> str: ...  # "" when there are some, else one sentence for the user
    def open(self, index: int) -> Port: ...


# Abilities: optional, asked for with isinstance.


@runtime_checkable
class Describes(Protocol):
    """A Driver that knows what its devices are without opening them."""

    def describe(self, index: int) -> DeviceProps: ...


@runtime_checkable
class Peers(Protocol):
    """A Driver whose devices may reach each other's memory. None is opened."""

    def can_access(self, index: int, peer: int) -> bool: ...


@runtime_checkable
class Emulates(Protocol):
    """A Driver whose devices this machine stands in for: what they are, and whether the host may touch their memory."""

    @property
    def profile(self) -> Profile: ...
    @property
    def guard(self) -> bool: ...


class Mark(Protocol):
    """A tick whose moment is kept."""

    @property
    def tick(self) -> int: ...


@runtime_checkable
class Timing(Protocol):
    """A Queue that knows when."""

    def mark(self) -> Mark: ...  # a signal, timed
    def elapsed_ms(self, start: Mark, end: Mark) -> float: ...  # both reached, of any queues of the kind


@runtime_checkable
class Logs(Protocol):
    """A Queue that knows when its newest work ran: `time.perf_counter_ns`; 0 of what was not yet, or too long ago."""

    def given(self) -> int: ...  # the number of the last piece of work, from 1 on; signals are none
    def log(self, most: int) -> Callable[[int], tuple[int, int]]: ...  # of later ones: begin, end. Outlives the queue


@runtime_checkable
class Launches(Protocol):
    """A Queue that runs host functions in order: Python callables, and native `int f(void*)` (0 is success)."""

    def call(self, function: Callable[[], object]) -> None: ...
    def call_native(self, function: int, argument: int) -> None: ...


@runtime_checkable
class Foresees(Protocol):
    """A Queue whose device may lack memory that it has: it wants to know where a function will write.

    Addresses and sizes; OutOfMemory, and the function should not be queued.
    """

    def expect(self, *spans: tuple[int, int]) -> None: ...


class Draw(NamedTuple):
    """One kernel's worth of random numbers: how many, of which law, where, and which ones.

    Element `t + threads * (n * i + lane)` gets number `lane` of the `n` that thread `t` makes of Philox's words for
    subsequence `t`, offset `offset + 4 * i`: 4 numbers, or 2 of 64 bits. But of "chances", element `i` gets what word
    `i % 4` of subsequence `i // 4` makes. The elements are in the order of the axes, each a length and a step in bytes,
    the fastest first; without axes they stand one after another.
    """

    law: str  # uniform normal exponential bernoulli integers chances
    element: str  # NumPy's name of the dtype
    address: int
    elements: int
    axes: tuple[tuple[int, int], ...]
    seed: int
    offset: int  # words, a multiple of 4
    threads: int  # a multiple of 256
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0)  # from, to, distance; mean, deviation; rate; probability
    range: int = 0  # of integers: how many there are, and the smallest; 0 stands for 2^64
    base: int = 0
    wide: bool = False  # of integers: each is made of 64 bits
    chances: int = 0  # the address of a float for each element, of a double where those are drawn


@runtime_checkable
class Randoms(Protocol):
    """A Queue that fills memory with random numbers. A chance that is none fails as work does, with code 710."""

    def draw(self, draw: Draw) -> None: ...


class Recorded(NamedTuple):
    """One piece of recorded work: what it does, and the numbers of those that it comes after."""

    what: str  # copy fill draw call native if while set again
    after: tuple[int, ...]
    details: Mapping[str, Any]
    body: range = range(0)  # of if and while: the pieces that are done only then


class Recording(Protocol):
    """The work of queues, recorded instead of done.

    `queues` are those that take part now, by their handles, each with the tick behind what it did before. `launch`
    does it all on a queue, in an order that it allows and behind what was launched before; `sources` are a seed and an
    offset for each source of random numbers.
    """

    @property
    def queues(self) -> Mapping[int, int]: ...
    @property
    def work(self) -> Sequence[Recorded]: ...
    def retain(self, *objects: object) -> None: ...  # as long as it may be launched
    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None: ...
    def begin_if(self, queue: Queue, address: int) -> None: ...  # what follows there is done if this byte is not 0
    def begin_while(self, queue: Queue, address: int) -> None: ...  # or again, as long as it is not 0 when `set_again`
    def set_again(self, queue: Queue, address: int) -> None: ...
    def end_body(self, queue: Queue) -> None: ...


@runtime_checkable
class Captures(Protocol):
    """A Queue whose work can be recorded. Between `begin_capture` and `end_capture` nothing of it is done.

    `signal` gives ticks below 0 meanwhile. A queue that waits for one takes part in the recording from then on, and the
    first queue must wait for it before the end. The seed of a draw is then the number of its source, its offset counts
    from the source's. What cannot be recorded raises DeviceError with CUDA's number, and mostly breaks the recording.
    """

    @property
    def capture(self) -> Recording | None: ...  # that it takes part in
    def begin_capture(  # mode: or "thread_local", "relaxed"; queues: what becomes the recording's
        self, mode: str = "global", queues: MutableMapping[int, int] | None = None
    ) -> Recording: ...
    def end_capture(self) -> Recording: ...
    def break_capture(self) -> None: ...  # nothing more can be recorded, and its end will say so
    def abandon_capture(self) -> None: ...  # no such recording; never fails


@runtime_checkable
class PinnedHost(Protocol):
    """A Port that lends host memory which queues copy from and to without the host waiting."""

    def pin(self, nbytes: int) -> int: ...
    def unpin(self, address: int) -> None: ...


@runtime_checkable
class Managed(Protocol):
    """A Port that lends memory which both its queues and the host read and write; it does not count as the device's."""

    def reserve_managed(self, nbytes: int) -> int: ...  # an address, aligned as by `reserve`; OutOfMemory
    def release_managed(self, address: int) -> None: ...


@runtime_checkable
class PinsInPlace(Protocol):
    """A Port that pins host memory which is somebody else's, and stays where it is."""

    def pin_there(self, address: int, nbytes: int) -> None: ...
    def unpin_there(self, address: int) -> None: ...  # exactly what `pin_there` was given


@runtime_checkable
class Growable(Protocol):
    """A Port that lends address space, whose pages get memory later. Sizes and addresses are multiples of `page`.

    Of an interrupted call nobody knows how far it came, so both ways may be gone again: pages that have memory keep it
    in `commit`, and those that have none stay so in `decommit`.
    """

    def reserve_space(self, nbytes: int, page: int) -> int: ...  # an address, aligned as by `reserve`; OutOfMemory
    def release_space(self, address: int) -> None: ...  # exactly what `reserve_space` gave; WrongState: it has memory
    def commit(self, address: int, nbytes: int) -> None: ...  # all of it or, with OutOfMemory, nothing
    def decommit(self, address: int, nbytes: int) -> None: ...  # what was committed, in any portions


@runtime_checkable
class Occupied(Protocol):
    """A Port that knows who uses its device."""

    def occupants(self) -> Mapping[int, int]: ...  # process ids, and the bytes they hold


@runtime_checkable
class Resizable(Protocol):
    """A Port whose capacity can be set, in bytes; never below what is reserved (WrongState)."""

    def set_capacity(self, nbytes: int) -> None: ...


@runtime_checkable
class Reopens(Protocol):
    """A Port whose device can be opened again in a forked child; the old one is forgotten there, not closed."""

    def abandon(self) -> None: ...


class Sensors(Protocol):
    """What one device says of itself. Each call reads anew, opens nothing and starts nothing."""

    def uuid(self) -> str: ...  # "GPU-…" where it is one
    def memory(self) -> tuple[int, int]: ...  # bytes in use by anybody, and in all
    def busy(self) -> tuple[int, int]: ...  # percent of the last second: computing, and using its memory
    def temperature(self) -> int: ...  # °C
    def power(self) -> int: ...  # mW
    def clock(self) -> int: ...  # MHz, of its multiprocessors
    def processes(self) -> Mapping[int, int | None]: ...  # process ids, and the bytes they hold if it can tell


@runtime_checkable
class Telemetry(Protocol):
    """A Driver, or a library, that reads devices without opening them, by the machine's own numbering.

    That numbering has the devices that the environment hides from the process, too.
    """

    def machine_count(self) -> int: ...
    def sensors(self, index: int) -> Sensors: ...  # DeviceError where there is no such device


class SharedMark(Protocol):
    """An event that several processes have. A word names one record of it, of whichever process; 0 names none.

    Whoever queues something keeps the mark until that is done. DeviceError where its maker has dropped it.
    """

    @property
    def handle(self) -> bytes: ...  # 64 bytes, by which another process opens it
    def record(self, queue: Queue) -> int: ...  # here, when the queue has done what it has
    def last(self) -> int: ...  # the word of the last record
    def reached(self, word: int) -> bool: ...  # never blocks
    def wait(self, word: int) -> None: ...  # the host waits. DeviceError when the process ended before it got there
    def wait_for(self, queue: Queue, word: int) -> None: ...  # the queue waits; its work fails in that case


@runtime_checkable
class Shares(Protocol):
    """A Port whose memory and events other processes of this machine can open, by handles of 64 bytes.

    DeviceError for a handle that is stale, made up or of this very process, and when its process is gone. Unsupported
    for memory of a kind that cannot be shared: with the ability "Growable" where its pages come and go.
    """

    def share(self, address: int) -> tuple[bytes, int]: ...  # the segment it lies in, and where
    def open_shared(self, handle: bytes) -> tuple[int, int]: ...  # address and size, until `close_shared`
    def close_shared(self, address: int) -> None: ...  # exactly what `open_shared` gave
    def make_mark(self) -> SharedMark: ...
    def open_mark(self, handle: bytes) -> SharedMark: ...
