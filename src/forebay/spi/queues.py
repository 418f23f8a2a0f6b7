"""Optional abilities of queues: timing, execution log, functions, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "Draw",
    "ExecutionLog",
    "Launches",
    "LazilyBacked",
    "Mark",
    "RandomNumbers",
    "StridedCopies",
    "StridedCopy",
    "Timing",
]


class Mark(Protocol):
    """A tick with a timestamp."""

    @property
    def tick(self) -> int:
        """The tick."""


@runtime_checkable
class Timing(Protocol):
    """A Queue that timestamps ticks."""

    def mark(self) -> Mark:
        """Queue the next tick and record the time at which it is reached."""

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
        """Return the number of the last queued piece of work, from 1; 0 before the first. Signals do not count."""

    def log(self, most: int) -> Callable[[Sequence[int]], list[tuple[int, int]]]:
        """Start to log the times of work that is queued from now on.

        Parameters
        ----------
        most : int
            Number of most recent pieces of work to keep.

        Returns
        -------
        callable
            Function from the numbers of pieces of work to the times at which each began and ended, as
            `time.perf_counter_ns`. A time is 0 if it has not come yet or is no longer kept. The log outlives the queue.
            A call may have to wait for a device, so pass many numbers at once.
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
    64-bit numbers. Number `lane` of them is written to element `t + threads * (n * i + lane)`. For the distribution
    "chances", element `i` is computed from word `i % 4` of subsequence `i // 4`; for "poisson", from the words of
    subsequence `i`.
    """

    #: One of "uniform", "normal", "exponential", "bernoulli", "integers", "chances", "cauchy", "log_normal",
    #: "geometric" or "poisson". "chances" is a Bernoulli distribution with one probability per element; "poisson" has
    #: one rate per element.
    distribution: str
    element: str  #: NumPy's name of the dtype, or "bfloat16"
    address: int  #: address of the destination
    elements: int  #: number of elements
    #: Length and stride in bytes of each axis of the destination, fastest first. Empty if it is contiguous.
    axes: tuple[tuple[int, int], ...]
    seed: int  #: Philox key
    offset: int  #: Philox offset in words, a multiple of 4
    threads: int  #: number of threads of the launch, a multiple of 256
    #: Parameters of the distribution. Low, high and their difference; mean and standard deviation; rate; probability;
    #: or median and scale.
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0)
    range: int = 0  #: number of possible "integers"; 0 stands for 2**64
    base: int = 0  #: smallest of the "integers"
    is_64bit: bool = False  #: whether each of the "integers" is made of 64 random bits
    #: For "chances" and "poisson" address of one probability or rate per element, of type double if doubles are drawn,
    #: else float.
    probabilities: int = 0


@runtime_checkable
class RandomNumbers(Protocol):
    """A Queue that fills memory with random numbers."""

    def draw(self, draw: Draw) -> None:
        """Queue a random fill.

        Parameters
        ----------
        draw : Draw
            The fill. A probability outside [0, 1] or a negative rate fails asynchronously with CUDA error 710
            (device-side assert).
        """


class StridedCopy(NamedTuple):
    """A copy of elements of any layout, with a conversion if the types differ; or a fill with one element.

    Element `i` of the source is copied to element `i` of the destination, for each index `i` of the shape.
    """

    shape: tuple[int, ...]  #: length of each axis, at most 64
    to: int  #: address of the destination's first element. It need not be aligned, as no address or stride.
    to_strides: tuple[int, ...]  #: distance in bytes of neighbours in the destination along each axis
    element: str  #: NumPy's name of the destination's dtype, or "bfloat16"
    itemsize: int  #: bytes of one element of the destination
    source: int = 0  #: address of the source's first element, in memory that `Queue.copy` could read
    source_strides: tuple[int, ...] = ()  #: distance in bytes of neighbours in the source along each axis
    #: Name of the source's dtype if it is converted, one of "bool", "bfloat16", and NumPy's integers, unsigned
    #: integers, floats and complex numbers of 8 to 128 bits. Empty if the bytes are copied unchanged.
    source_element: str = ""
    #: For a fill, the element that is copied to each element of the destination. There is no source then.
    value: bytes = b""
    #: Whether the source may share memory with the destination. It is then read completely before anything is written.
    may_overlap: bool = False


@runtime_checkable
class StridedCopies(Protocol):
    """A Queue that copies elements between strided layouts, converts them, and fills memory with an element."""

    def copy_strided(self, copy: StridedCopy) -> None:
        """Queue a strided copy or a fill.

        Parameters
        ----------
        copy : StridedCopy
            The copy. Conversions have the results of `numpy.copyto` with `casting="unsafe"`.
        """
