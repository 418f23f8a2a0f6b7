"""Queue of a CUDA device whose work is logged, for the ability `ExecutionLog`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index

from forebay.backends.nvidia._stream import WorkTimes
from forebay.backends.nvidia.cupti import has_cupti
from forebay.backends.nvidia.queue import CudaQueue

__all__ = ["LoggingQueue", "queue_class"]

_MOST = (1 << 63) - 1


class LoggingQueue(CudaQueue):
    """A queue where CUPTI is installed.

    A copy, fill, kernel, launch of a graph and function of the host is one piece of work each. CUPTI reports a piece
    when it is complete, so that its begin is unknown until then; functions of the host are timed where they run. Work
    that a graph repeats is a part of the launch.
    """

    def last_work_number(self) -> int:
        return self.work_number()

    def log(self, most: int) -> Callable[[Sequence[int]], list[tuple[int, int]]]:
        most = index(most)
        if not 1 <= most <= _MOST:
            raise ValueError(f"a log must hold at least 1 piece of work, not {most}")
        self.check_usable()
        return WorkTimes(self, most)


def queue_class() -> type[CudaQueue]:
    """Return the class of queues: one with `ExecutionLog` if CUPTI is installed."""
    return LoggingQueue if has_cupti() else CudaQueue
