"""When a profiler is to look at the program, be it another's or, where FOREBAY_TRACE names a file for its trace, ours.
(`torch.cuda.profiler`)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.cuda._kind import CUDA
from forebay.cuda.runtime_api import check_error, cudart
from forebay.errors import ForebayError
from forebay.observe.tracing import profiler_session
from forebay.observe.tracing.session import stopping

__all__ = ["DEFAULT_FLAGS", "profile", "start", "stop"]

DEFAULT_FLAGS = [  # of `nvprof`, which nothing uses any more
    "gpustarttimestamp",
    "gpuendtimestamp",
    "gridsize3d",
    "threadblocksize",
    "streamid",
    "enableonstart 0",
    "conckerneltrace",
]


def start() -> None:
    """Tell profilers to begin. Initialises CUDA; CudaError where CUDA refuses."""
    check_error(cudart().cudaProfilerStart())


def stop() -> None:
    """Tell profilers to end. Initialises CUDA; CudaError where CUDA refuses.

    A trace that goes on ends though its devices have gone, with their emulation.
    """
    try:
        check_error(cudart().cudaProfilerStop())
    except ForebayError:
        if not profiler_session.end(CUDA.name):
            raise


@contextmanager
def profile() -> Iterator[None]:
    """From `start` to `stop`, which comes also after an error."""
    with stopping(stop, "the trace", OSError):
        start()
        yield
