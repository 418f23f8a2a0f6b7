"""Modules of PyObjC, imported at first use, ownership of its objects, and DeviceErrors from Metal's errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import filterfalse, tee, zip_longest
from operator import call, is_, itemgetter, methodcaller
from typing import Any

from forebay.errors import DeviceError, ForebayError

__all__ = ["autorelease_pool", "device_error", "foundation", "hold", "invoke", "metal", "new", "new_or_error"]

_release = methodcaller("release")
_is_nil = partial(is_, None)


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


def new(method: Callable[..., Any], *arguments: object) -> Any:
    """Call a method of an instance whose name begins with "new", and return what it creates, or None.

    The caller owns the object. PyObjC up to 12.2.2 does not know that and retains it: without a release, no memory of
    Metal would ever be freed (https://github.com/ronaldoussoren/pyobjc/issues/690). A signal handler that raises cannot
    run between the two steps.
    """
    return _released(method, partial(method, *arguments), iter)


def new_or_error(method: Callable[..., Any], *arguments: object) -> tuple[Any, Any]:
    """Do the same with a method whose last argument is an error. Return the object, or None, and the error."""
    found: tuple[Any, Any] = _released(method, partial(method, *arguments, None), partial(map, itemgetter(0)))
    return found


def _released(method: Any, make: Callable[[], Any], objects: Callable[[Any], Any]) -> Any:
    if method.__metadata__()["retval"].get("already_retained", False):
        return make()
    results, again = tee(map(call, (make,)))
    # One step of zip_longest takes the result and then the result of its release; the interpreter runs between neither.
    return next(zip_longest(results, map(_release, filterfalse(_is_nil, objects(again)))))[0]


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
        method = arguments[0] if function in (new, new_or_error) else function
        name = getattr(method, "__name__", "Metal")
        raise DeviceError(f"{device}: {name} failed: {error}", call=name, device=device) from None
