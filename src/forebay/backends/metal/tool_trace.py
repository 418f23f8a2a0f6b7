"""Recordings of the GPU's commands by MTLCaptureManager, which Xcode opens (.gputrace)."""

from __future__ import annotations

from typing import Any

from forebay.backends.metal.calls import autorelease_pool, device_error, foundation, invoke, metal

__all__ = ["begin", "end", "is_active", "is_enabled"]


def is_enabled(name: str) -> bool:
    """Return True if the system permits recordings: MTL_CAPTURE_ENABLED=1 is set, or Xcode runs the process."""
    api = metal()
    with autorelease_pool():
        return bool(invoke(name, _manager().supportsDestination_, api.MTLCaptureDestinationGPUTraceDocument))


def is_active(name: str) -> bool:
    """Return True while commands are recorded."""
    with autorelease_pool():
        return bool(invoke(name, _manager().isCapturing))


def begin(device: Any, path: str, name: str) -> None:
    """Begin to record the commands of all queues of a device. Raises DeviceError."""
    with autorelease_pool():
        started, error = invoke(name, _start, device, path)
        if not started:
            what = "the recording cannot begin" + ("" if is_enabled(name) else ": set MTL_CAPTURE_ENABLED=1")
            raise device_error(error, what, "startCaptureWithDescriptor:error:", name)


def _start(device: Any, path: str) -> tuple[bool, Any]:
    api = metal()
    descriptor = api.MTLCaptureDescriptor.alloc().init()
    descriptor.setCaptureObject_(device)
    descriptor.setDestination_(api.MTLCaptureDestinationGPUTraceDocument)
    descriptor.setOutputURL_(foundation().NSURL.fileURLWithPath_(path))
    started, error = _manager().startCaptureWithDescriptor_error_(descriptor, None)
    return bool(started), error


def end(name: str) -> None:
    """End the recording and write the file; do nothing without one."""
    with autorelease_pool():
        manager = _manager()
        if invoke(name, manager.isCapturing):
            invoke(name, manager.stopCapture)


def _manager() -> Any:
    return metal().MTLCaptureManager.sharedCaptureManager()
