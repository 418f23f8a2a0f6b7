"""Start and stop of profiling (`torch.cuda.profiler`).

Profilers receive marks; if FOREBAY_TRACE names a file, forebay writes a trace to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.cuda._kind import CUDA
from forebay.cuda.runtime_api import check_error, cudart
from forebay.errors import ForebayError
from forebay.observe.tracing import profiler_session
from forebay.observe.tracing.session import stop_on_exit

__all__ = ["DEFAULT_FLAGS", "profile", "start", "stop"]

DEFAULT_FLAGS = [  # for nvprof; unused
    "gpustarttimestamp",
    "gpuendtimestamp",
    "gridsize3d",
    "threadblocksize",
    "streamid",
    "enableonstart 0",
    "conckerneltrace",
]


def start() -> None:
    """Start profiling.

    As `torch.cuda.profiler.start`. Initialises CUDA. If FOREBAY_TRACE names a file and no trace is active, starts one.

    Raises
    ------
    CudaError
        If CUDA rejects the call.
    """
    check_error(cudart().cudaProfilerStart())


def stop() -> None:
    """Stop profiling.

    As `torch.cuda.profiler.stop`. Initialises CUDA. Ends and writes an active trace, even if the emulation of its
    devices has ended.

    Raises
    ------
    CudaError
        If CUDA rejects the call.
    """
    try:
        check_error(cudart().cudaProfilerStop())
    except ForebayError:
        if not profiler_session.end(CUDA.name):
            raise


@contextmanager
def profile() -> Iterator[None]:
    """Profile the body of a `with` statement.

    As `torch.cuda.profiler.profile`. Calls `start` on entry and `stop` on exit, also after an error. Initialises CUDA.

    Raises
    ------
    CudaError
        If CUDA rejects the start or the stop.
    """
    with stop_on_exit(stop, "the trace", OSError):
        start()
        yield
