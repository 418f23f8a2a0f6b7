"""Modules of PyObjC, imported at first use, autorelease pools, and DeviceErrors from Metal's errors."""

from __future__ import annotations

from collections.abc import Callable
from operator import call
from typing import Any

from forebay.errors import DeviceError, ForebayError

__all__ = ["autorelease_pool", "device_error", "foundation", "hold", "invoke", "metal"]


def metal() -> Any:
    """Return the module `Metal`. Raises ImportError if PyObjC is not installed."""
    import Metal

    return Metal


def foundation() -> Any:
    """Return the module `Foundation`. Raises ImportError if PyObjC is not installed."""
    import Foundation

    return Foundation


def autorelease_pool() -> Any:
    """Return a context manager with an autorelease pool of this thread.

    Command buffers and encoders are autoreleased. A thread of Python has no pool, and would keep them until it ends.
    """
    import objc

    return objc.autorelease_pool()


def hold(results: list[Any], make: Callable[[], Any]) -> Any:
    """Append what a function returns to a list, and return it.

    A signal handler that raises cannot run between the two steps, so that no object is lost.
    """
    results.extend(map(call, (make,)))
    return results[-1]


def device_error(error: Any, what: str, function: str, device: str) -> DeviceError:
    """Return the exception for an NSError, or for a nil result without one, with Metal's code and text."""
    if error is None:
        return DeviceError(f"{device}: {what}: {function} returned nil", call=function, device=device)
    code, text = int(error.code()), str(error.localizedDescription())
    message = f"{device}: {what}: {text} ({error.domain()} {code})"
    return DeviceError(message, code=code, call=function, device=device)


def invoke(device: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of a Metal object. An exception of PyObjC becomes a DeviceError."""
    try:
        return function(*arguments)
    except ForebayError:
        raise
    except Exception as error:  # noqa: BLE001 -- PyObjC's are of several types
        name = getattr(function, "__name__", "Metal")
        raise DeviceError(f"{device}: {name} failed: {error}", call=name, device=device) from None
