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

    Raises
    ------
    CudaError
        If CUDA rejects the call.

    Notes
    -----
    As `torch.cuda.profiler.start`. Initialises CUDA. If FOREBAY_TRACE names a file and no trace is active, starts one.
    """
    check_error(cudart().cudaProfilerStart())


def stop() -> None:
    """Stop profiling.

    Raises
    ------
    CudaError
        If CUDA rejects the call.

    Notes
    -----
    As `torch.cuda.profiler.stop`. Initialises CUDA. Ends and writes an active trace, even if the emulation of its
    devices has ended.
    """
    try:
        check_error(cudart().cudaProfilerStop())
    except ForebayError:
        if not profiler_session.end(CUDA.name):
            raise


@contextmanager
def profile() -> Iterator[None]:
    """Profile the body of a `with` statement.

    Raises
    ------
    CudaError
        If CUDA rejects the start or the stop.

    Notes
    -----
    As `torch.cuda.profiler.profile`. Calls `start` on entry and `stop` on exit, also after an error. Initialises CUDA.
    """
    with stop_on_exit(stop, "the trace", OSError):
        start()
        yield
