"""Traces of what MPS does: a file that https://ui.perfetto.dev opens, and on macOS signposts. (`torch.mps.profiler`)

The file is the one that FOREBAY_TRACE names, else forebay-trace-PID.pftrace in the current directory; the second
trace of a process has -2 in its name. Other kinds of device are in it, too. `forebay.observe.trace` takes a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from forebay.errors import ForebayError, Unsupported
from forebay.mps._kind import MPS, as_boolean, check_there_for
from forebay.observe.tracing import profiler_session
from forebay.observe.tracing.session import stopping
from forebay.observe.tracing.signposts import Signposts, signposts
from forebay.runtime.base import observers

__all__ = ["is_capturing_metal", "is_metal_capture_enabled", "metal_capture", "profile", "start", "stop"]

_ProfilerMode = Literal["interval", "event", "interval,event"]

_started: list[Signposts | None] = []  # one while a trace goes on


def start(mode: _ProfilerMode = "interval", wait_until_completed: bool = False) -> None:
    """Trace from now on: how long operations take ("interval"), or when each was done, and events ("event"), or both.

    An empty mode starts nothing. With `wait_until_completed` the host waits for each operation. RuntimeError for
    another mode, and where a trace goes on; ModuleNotFoundError where the package that writes it is not installed.
    """
    normal = mode.lower().replace(" ", "")
    wait_until_completed = as_boolean(wait_until_completed)
    check_there_for("profilerStartTrace")
    with profiler_session.changing:
        if _tracing():
            raise ForebayError("Tracing Signposts is already enabled ")
        asked = [each for each in normal.split(",") if each]
        for each in asked:
            if each not in ("interval", "event"):
                raise ForebayError(f"Invalid Signpost trace mode: {each}")
        if not asked:
            return
        intervals, events = "interval" in asked, "event" in asked
        maker = signposts(intervals=intervals, events=events)  # first: it may fail, and so may what comes next
        profiler_session.begin(
            MPS.name,
            profiler_session.file_asked_for() or profiler_session.usual_file(),
            intervals=intervals,
            events=events,
            wait_until_completed=wait_until_completed,
        )
        _started[:] = [maker]
        if maker is not None:
            observers.trace(maker)


def stop() -> None:
    """End the trace, and write it; nothing where none goes on. Waits up to five seconds for work that is not done.

    One that goes on ends though its device has gone, with its emulation.
    """
    with profiler_session.changing:
        was, going = _tracing(), _started[:]
        _started.clear()
    if not was:
        check_there_for("profilerStopTrace")
    for maker in going:
        if maker is not None:
            observers.trace_no_more(maker)
    if was:
        profiler_session.end(MPS.name)


@contextmanager
def profile(mode: _ProfilerMode = "interval", wait_until_completed: bool = False) -> Iterator[None]:
    """From `start` to `stop`, which comes also after an error, be it one of `start`."""
    with stopping(stop, "the trace", OSError):
        start(mode, wait_until_completed)
        yield


def is_metal_capture_enabled() -> bool:
    """Whether `metal_capture` can be used: never, as this version of forebay has no backend for Metal."""
    return False


def is_capturing_metal() -> bool:
    """Whether a capture of Metal's calls goes on."""
    return False


@contextmanager
def metal_capture(fname: str) -> Iterator[None]:  # noqa: ARG001 -- PyTorch's signature
    """Capture Metal's calls into a file for Xcode. Unsupported: see `is_metal_capture_enabled`."""
    check_there_for("startCapture")
    raise Unsupported(
        "metal_capture() records calls of Metal, and this version of forebay has no backend that makes any; "
        "forebay.observe.trace writes what queues do"
    )
    yield  # makes it a context manager, as which it raises when it is entered


def _tracing() -> bool:
    return bool(_started) and profiler_session.going_on()
