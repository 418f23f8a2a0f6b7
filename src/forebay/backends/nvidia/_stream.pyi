"""Streams of NVIDIA's driver, their ticks and their host functions.

A destructor may call any method, in any thread but the one on which the driver runs host functions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from typing_extensions import disjoint_base

from forebay.backends.nvidia.calls import Context
from forebay.spi import Mark as _Mark

ALL_DEVICES: Final[int]
NO_DEVICE: Final[int]
FUNCTIONS: Final[tuple[str, ...]]  # of the driver, which `load` sets

CUPTI_FUNCTIONS: Final[tuple[str, ...]]  # which `load_cupti` sets

def load_cupti(addresses: Mapping[str, int]) -> None: ...  # by name; before the first log
def load(addresses: Mapping[str, int]) -> None: ...  # by name; before the first stream

@final
class Current:
    """Context manager that makes a context current, for one `with` block, which gets an object.

    Calls that captures cannot observe, such as the allocation of memory, are permitted inside the block. They would
    fail otherwise, and invalidate the captures of the whole process, also those of other libraries.
    """

    def __init__(self, context: Context, result: object) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *_: object) -> None: ...

@final
class Mark:
    """A tick, and an event of the driver with the time at which it was reached."""

    @property
    def tick(self) -> int: ...

@final
class WorkTimes:
    """Times of the work of a stream, of the last `most` pieces from now on; see `spi.ExecutionLog`."""

    def __init__(self, stream: Stream, most: int) -> None: ...
    def __call__(self, numbers: Sequence[int]) -> list[tuple[int, int]]: ...

@final
class HostCall:
    """A Python function that a stream executes: once or, if a graph repeats and owns it, several times."""

    function: Callable[[], object] | None  # None if it was dropped
    repeated: bool
    stream: Stream  # which reports a failure
    def __init__(self, stream: Stream, function: Callable[[], object], repeated: bool = False) -> None: ...

@final
class NativeHostCall:
    """A native function that a graph owns and streams execute repeatedly."""

    def __init__(self, stream: Stream, function: int, argument: int) -> None: ...
    def report_to(self, stream: Stream) -> None: ...  # a failure from now on

@disjoint_base
class Stream:
    """Base class of a queue: a stream of the driver and its ticks."""

    @property
    def context(self) -> Context: ...
    @property
    def name(self) -> str: ...  # of the device
    @property
    def handle(self) -> int: ...  # of the stream
    @property
    def closed(self) -> bool: ...
    def __init__(self, context: Context, handle: int) -> None: ...
    def copy(self, dst: int, src: int, nbytes: int) -> None: ...
    def fill(self, dst: int, byte: int, nbytes: int) -> None: ...
    def call(self, function: Callable[[], object]) -> None: ...
    def queue_call(self, call: HostCall) -> None: ...
    def queue_native_call(self, call: NativeHostCall) -> None: ...
    def call_native(self, function: int, argument: int) -> None: ...
    def launch_kernel(
        self,
        function: int,  # handle
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        arguments: tuple[bytes, ...],
    ) -> None: ...
    def launch_graph(self, graph: int) -> None: ...  # handle of an executable graph
    def work_number(self) -> int: ...  # of the last piece of queued work
    # Return the device whose kernels can access an address: ALL_DEVICES for pinned and managed memory, NO_DEVICE for
    # other memory of the host.
    def memory_device(self, address: int) -> int: ...
    @property
    def last_tick(self) -> int: ...  # that was signalled
    def signal(self) -> int: ...
    def mark(self) -> Mark: ...
    def elapsed_ms(self, start: _Mark, end: _Mark) -> float: ...
    def reached(self) -> int: ...
    def idle(self) -> bool: ...
    def wait_within(self, tick: int, nanoseconds: int) -> bool: ...
    def make_wait(self, other: Stream, tick: int) -> None: ...  # of this stream, for a tick of another one
    # Return the first failure of a host function since the last call, and forget the others.
    def take_failure(self) -> BaseException | int | None: ...
    def destroy_events(self) -> None: ...  # all ticks count as reached then
    def drop_calls(self) -> None: ...  # the Python functions that have not begun
    def check_usable(self) -> None: ...  # raises Forked or WrongState
