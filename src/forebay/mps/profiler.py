"""Traces of MPS operations: a Perfetto file (https://ui.perfetto.dev) and, on macOS, signposts. (`torch.mps.profiler`)

FOREBAY_TRACE names the file; the default is forebay-trace-PID.pftrace in the current directory, with -2 in the name of
the second trace of a process. The file has other device kinds too. `forebay.observe.trace` accepts a file name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from forebay.errors import ForebayError, Unsupported
from forebay.mps._kind import MPS, as_boolean, get_open_device, open_device, require_backend
from forebay.observe.tracing import profiler_session
from forebay.observe.tracing.session import stop_on_exit
from forebay.observe.tracing.signposts import Signposts, signposts
from forebay.runtime.base import observers
from forebay.spi import ToolTraces

__all__ = ["is_capturing_metal", "is_metal_capture_enabled", "metal_capture", "profile", "start", "stop"]

_ProfilerMode = Literal["interval", "event", "interval,event"]

_started: list[Signposts | None] = []  # one entry while a trace is active


def start(mode: _ProfilerMode = "interval", wait_until_completed: bool = False) -> None:
    """Start a trace.

    As `torch.mps.profiler.start`.

    Parameters
    ----------
    mode : str, default "interval"
        "interval" records durations, "event" the time of each completed operation and of events, "interval,event"
        both; an empty mode starts no trace.
    wait_until_completed : bool, default False
        Wait for each operation before the call that queued it returns.

    Raises
    ------
    RuntimeError
        If `mode` is unknown, a trace is active or there is no MPS device.
    ModuleNotFoundError
        If the package that writes the file is not installed.
    """
    normalized = mode.lower().replace(" ", "")
    wait_until_completed = as_boolean(wait_until_completed)
    require_backend("profilerStartTrace")
    with profiler_session.lock:
        if _tracing():
            raise ForebayError("Tracing Signposts is already enabled ")
        modes = [each for each in normalized.split(",") if each]
        for each in modes:
            if each not in ("interval", "event"):
                raise ForebayError(f"Invalid Signpost trace mode: {each}")
        if not modes:
            return
        intervals, events = "interval" in modes, "event" in modes
        signpost_tracer = signposts(intervals=intervals, events=events)  # may raise, so before the session begins
        profiler_session.begin(
            MPS.name,
            profiler_session.requested_file() or profiler_session.default_file(),
            intervals=intervals,
            events=events,
            wait_until_completed=wait_until_completed,
        )
        _started[:] = [signpost_tracer]
        if signpost_tracer is not None:
            observers.add_tracer(signpost_tracer)


def stop() -> None:
    """Stop the trace and write the file; do nothing without an active trace.

    As `torch.mps.profiler.stop`. Waits up to five seconds for pending work. Also works after the emulation has ended.

    Raises
    ------
    ForebayError
        If no trace is active and there is no MPS device.
    OSError
        If the file cannot be written.
    """
    with profiler_session.lock:
        was_tracing, tracers = _tracing(), _started[:]
        _started.clear()
    if not was_tracing:
        require_backend("profilerStopTrace")
    for signpost_tracer in tracers:
        if signpost_tracer is not None:
            observers.remove_tracer(signpost_tracer)
    if was_tracing:
        profiler_session.end(MPS.name)


@contextmanager
def profile(mode: _ProfilerMode = "interval", wait_until_completed: bool = False) -> Iterator[None]:
    """Trace the operations inside the context.

    As `torch.mps.profiler.profile`: `stop` also runs if `start` fails.

    Parameters
    ----------
    mode : str, default "interval"
        As `start`.
    wait_until_completed : bool, default False
        As `start`.

    Yields
    ------
    None
        Exit stops the trace, also after an error.

    Raises
    ------
    RuntimeError
        As `start`.
    """
    with stop_on_exit(stop, "the trace", OSError):
        start(mode, wait_until_completed)
        yield


def is_metal_capture_enabled() -> bool:
    """Return True if `metal_capture` can be used.

    As `torch.mps.profiler.is_metal_capture_enabled`. Opens the device if there is one.

    Returns
    -------
    bool
        Whether there is a Metal device and the system permits recordings, which the variable MTL_CAPTURE_ENABLED=1
        enables; False for an emulated device.
    """
    if not MPS.count():
        return False
    port = open_device(None, "isCaptureEnabled").port
    return isinstance(port, ToolTraces) and port.tool_trace_enabled()


def is_capturing_metal() -> bool:
    """Return True while `metal_capture` records.

    As `torch.mps.profiler.is_capturing_metal`. Does not open the device.
    """
    opened = get_open_device()
    return opened is not None and isinstance(opened.port, ToolTraces) and opened.port.tool_trace_active()


@contextmanager
def metal_capture(fname: str) -> Iterator[None]:
    """Record Metal's commands inside the context, for Xcode.

    As `torch.mps.profiler.metal_capture`. Opens the device.

    Parameters
    ----------
    fname : str
        Name of the file; its suffix becomes .gputrace. It must not exist.

    Yields
    ------
    None
        Exit waits for the work and writes the file.

    Raises
    ------
    Unsupported
        If the device is emulated.
    DeviceError
        If the system does not permit it, or a recording is active.
    ForebayError
        If there is no MPS device.
    """
    require_backend("startCapture")
    opened = open_device(None, "startCapture")
    port = opened.port
    if not isinstance(port, ToolTraces):
        raise Unsupported(
            f"metal_capture() records Metal calls, and {opened.device} has none: "
            "use forebay.observe.trace to trace queues",
            ability="ToolTraces",
        )
    port.begin_tool_trace(str(Path(fname).with_suffix(".gputrace").absolute()))
    try:
        yield
        opened.synchronize()
    finally:
        port.end_tool_trace()


def _tracing() -> bool:
    return bool(_started) and profiler_session.is_active()
