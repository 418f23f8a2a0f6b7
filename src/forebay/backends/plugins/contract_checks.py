"""Runtime checks of the vendor contract, so that errors of a package's backend are attributed to it.

# Note [Checked backends keep their identity]
`wrap_with_checks` assigns a driver, and every port and queue that it creates, a subclass of its class, in which the
methods of the contract are wrapped. The objects stay the same: code tests for abilities with isinstance, and compares
queues by identity. A method that raises anything but forebay's errors, or returns a value that the contract does not
allow, raises a DeviceError that names the backend, so that the allocator's tables never contain it. Objects whose
`__class__` cannot be assigned are not checked. Rejected: a proxy, which loses abilities and identity, and checks in
the runtime, which backends of forebay would pay for.
Test: tests/backends/plugins/test_contract_checks.py::test_reserve_rejects_overlapping_segment
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from numbers import Real
from typing import Any, TypeVar, cast

from forebay._base.byte_sizes import LIMIT
from forebay.backends.common.abilities import OF_DRIVERS, OF_PORTS, OF_QUEUES, methods
from forebay.backends.common.arguments import integer_of
from forebay.backends.plugins.close_with_timeout import call_with_timeout
from forebay.errors import DeviceError, ForebayError, warn_unraisable
from forebay.spi import SEGMENT_ALIGNMENT, DeviceProps, Driver, Heaps, Port, Queue

__all__ = ["FAILURES", "format_error", "wrap_with_checks"]

_ARGUMENT_ERRORS = (ValueError, TypeError)  # possibly the caller's fault
FAILURES = (ForebayError, *_ARGUMENT_ERRORS)  # all that a checked backend raises
_MAX_DEVICES = 1 << 16
_MINIMA = {  # of the numbers in DeviceProps
    **dict.fromkeys(("index", "pooled_streams", "multi_processor_count", "max_threads_per_multi_processor"), 0),
    "dlpack_type": 0,
    **dict.fromkeys(("total_bytes", "stream_priorities"), 1),
}
_GRACE = 1.0  # seconds that `close` may take beyond its timeout
_T = TypeVar("_T")
_Method = Callable[..., Any]
_Check = tuple[Callable[[Any], bool], str]  # predicate of a valid result, and the text of the error
_Wrapper = Callable[[_Method], _Method]  # adds checks to a wrapped method


def wrap_with_checks(driver: Driver, backend: str) -> Driver:
    """Return the driver with contract checks, also on all ports and queues that it creates.

    `backend` names the backend in errors.
    """
    return _checked(driver, _driver_class, backend)


def format_error(error: BaseException) -> str:
    """Return the last line of the error's traceback.

    >>> format_error(KeyError("x")), format_error(StopIteration())
    ("KeyError: 'x'", 'StopIteration')
    """
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _checked(thing: _T, make_class: Callable[[type, str], type], backend: str) -> _T:
    if not hasattr(thing, "_forebay_checked"):  # else it was returned before
        with suppress(TypeError):  # the class permits no such subclass
            thing.__class__ = make_class(type(thing), backend)
    return thing


def _subclass(
    base: type, backend: str, contracts: Iterable[type], checks: Mapping[str, _Check], wrappers: Mapping[str, _Wrapper]
) -> type:
    """Return a subclass of `base` in which the contracts' methods are wrapped."""

    def wrap(name: str, original: _Method, check: _Check | None) -> _Method:
        is_valid, problem = check or (None, "")

        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                result = original(self, *arguments, **options)
            except Exception as error:
                _check_error(self, backend, name, error)
                raise
            if is_valid is None or is_valid(result):
                return result
            raise _violation(self, backend, name, f"returned {result!r}, {problem}")

        return method

    body: dict[str, Any] = {"__slots__": (), "__module__": base.__module__, "__qualname__": base.__qualname__}
    body["_forebay_checked"] = backend
    for name in methods(*contracts):
        original = getattr(base, name, None)
        if callable(original):  # else the class lacks the ability, or only the instance has it
            method = wrap(name, original, checks.get(name))
            body[name] = wraps(original)(wrappers[name](method) if name in wrappers else method)
    return type(base)(base.__name__, (base,), body)


def _check_error(thing: Any, backend: str, call: str, error: Exception) -> None:
    """Raise DeviceError for an error that a backend may not raise; add a note to one that may be the caller's fault."""
    if isinstance(error, _ARGUMENT_ERRORS):
        error.add_note(f"raised in {call}() by {backend}")
    elif not isinstance(error, ForebayError):
        raise _violation(thing, backend, call, f"raised {format_error(error)}") from error


def _violation(thing: Any, backend: str, call: str, what: str) -> DeviceError:
    props = getattr(thing, "props", None)
    device = f"{props.kind}:{props.index}" if isinstance(props, DeviceProps) else ""
    return DeviceError(f"{backend} broke its contract: {call}() {what}", call=call, device=device)


# ---- Drivers


@lru_cache
def _driver_class(base: Any, backend: str) -> type:
    def checked_count(driver: Any) -> tuple[int, str]:
        """Return the number of devices and any error in it. Never raises, so that other kinds stay usable."""
        try:
            count = base.count(driver)
        except Exception as error:  # noqa: BLE001 -- see above
            return 0, f"{backend} broke its contract: count() raised {format_error(error)}"
        if not _is_int(count) or not 0 <= count <= _MAX_DEVICES:
            return 0, f"{backend} broke its contract: count() returned {count!r}, which is not a valid count"
        return int(count), ""

    def why_not(driver: Any) -> str:
        count, problem = checked_count(driver)
        if count or problem:
            return problem
        try:
            reason = base.why_not(driver)
        except Exception as error:  # noqa: BLE001 -- as above
            return f"{backend} has no device, and why_not() raised {format_error(error)}"
        if isinstance(reason, str) and reason:
            return reason
        return f"{backend} has no device, and why_not() returned {reason!r}"

    def wrap_open(method: _Method) -> _Method:
        def open(driver: Any, index: int) -> Port:  # noqa: A001 -- its name in the contract
            port = method(driver, index)
            if missing := [name for name in ("props", *methods(Port)) if not _has(port, name)]:
                raise _violation(driver, backend, "open", f"returned {port!r}, which has no {', '.join(missing)}")
            try:
                _check_props(driver, port.props, backend, "open")
            except DeviceError:
                with suppress(Exception):  # the contract violation is the error to report
                    port.close()
                raise
            return cast("Port", _checked(port, _port_class, backend))

        return open

    def wrap_describe(method: _Method) -> _Method:
        def describe(driver: Any, index: int) -> DeviceProps:
            props = method(driver, index)
            _check_props(driver, props, backend, "describe")
            return cast("DeviceProps", props)

        return describe

    wrappers: dict[str, _Wrapper] = {"open": wrap_open, "describe": wrap_describe}
    wrappers["count"] = lambda _: lambda driver: checked_count(driver)[0]
    wrappers["why_not"] = lambda _: why_not
    return _subclass(base, backend, (Driver, *OF_DRIVERS), {}, wrappers)


def _check_props(driver: Any, props: Any, backend: str, call: str) -> None:
    if not isinstance(props, DeviceProps):
        raise _violation(driver, backend, call, f"returned a device whose props are {props!r}, not DeviceProps")
    if props.kind != driver.kind:
        raise _violation(driver, backend, call, f"returned a device of kind {props.kind!r}, not {driver.kind!r}")
    if not isinstance(props.heaps, Heaps | None):
        raise _violation(driver, backend, call, f"returned a device whose heaps are {props.heaps!r}, not Heaps")
    if not isinstance(props.name, str):
        raise _violation(driver, backend, call, f"returned a device whose name is {props.name!r}")
    if not isinstance(props.details, Mapping):
        raise _violation(driver, backend, call, f"returned a device whose details are {props.details!r}, not a mapping")
    numbers = {name: getattr(props, name) for name in _MINIMA}
    numbers |= {name: props.details[name] for name in ("major", "minor") if name in props.details}
    for name, number in numbers.items():
        if not _is_int(number) or not _MINIMA.get(name, 0) <= number < LIMIT:
            raise _violation(driver, backend, call, f"returned a device whose {name} is {number!r}")


# ---- Ports


@lru_cache
def _port_class(base: Any, backend: str) -> type:
    def wrap_reserve(method: _Method) -> _Method:
        def reserve(port: Any, nbytes: int) -> int:
            address = method(port, nbytes)
            if not _is_int(address) or not 0 < address < LIMIT - nbytes:
                raise _violation(port, backend, "reserve", f"returned {address!r}, which is not a valid address")
            segments = _segments_of(port)
            for start, size in tuple(segments.items()):  # a copy: a destructor may release a segment during the loop
                if start < address + nbytes and address < start + size:
                    what = f"returned {nbytes} bytes at {address:#x}, which overlap {size} reserved at {start:#x}"
                    raise _violation(port, backend, "reserve", what)
            if address % SEGMENT_ALIGNMENT:
                with suppress(Exception):  # do not leak the segment
                    base.release(port, address)
                what = f"returned {address:#x}, which is not aligned to {SEGMENT_ALIGNMENT} bytes"
                raise _violation(port, backend, "reserve", what)
            segments[address] = nbytes
            return int(address)

        return reserve

    def wrap_release(method: _Method) -> _Method:
        def release(port: Any, address: int) -> None:
            nbytes = _segments_of(port).pop(address, None)  # before the release: another thread may reserve it at once
            try:
                method(port, address)
            except BaseException:
                if nbytes is not None:
                    _segments_of(port)[address] = nbytes
                raise

        return release

    def wrap_close(method: _Method) -> _Method:
        def close(port: Any) -> None:
            method(port)
            _segments_of(port).clear()

        return close

    def checked_queue(port: Any, call: str, found: Any) -> Queue:
        if missing := [name for name in ("handle", *methods(Queue)) if not _has(found, name)]:
            raise _violation(port, backend, call, f"returned {found!r}, which has no {', '.join(missing)}")
        if not _is_int(found.handle) or not 0 <= found.handle < LIMIT:
            raise _violation(port, backend, call, f"returned a queue whose handle is {found.handle!r}")
        return cast("Queue", _checked(found, _queue_class, backend))

    def wrap_queue(method: _Method) -> _Method:
        return lambda port, priority=0: checked_queue(port, "queue", method(port, priority))

    def wrap_external_queue(method: _Method) -> _Method:
        return lambda port, handle: checked_queue(port, "external_queue", method(port, handle))

    checks: dict[str, _Check] = {
        "memory_info": (_is_memory_info, "which is not a tuple of free and total bytes"),
        "settled": (lambda found: found.__class__ is bool, "which is not a bool"),
        "memory_device": (lambda found: found is None or _is_int(found), "which is neither an index nor None"),
        **dict.fromkeys(("pin", "reserve_managed", "reserve_space"), (_is_address, "which is not a valid address")),
    }
    wrappers: dict[str, _Wrapper] = {
        "reserve": wrap_reserve,
        "release": wrap_release,
        "queue": wrap_queue,
        "external_queue": wrap_external_queue,
        "close": wrap_close,
    }
    return _subclass(base, backend, (Port, *OF_PORTS), checks, wrappers)


def _segments_of(port: Any) -> dict[int, int]:
    """Return the sizes of the port's segments by address; a temporary dict if the port cannot have attributes."""
    with suppress(AttributeError):
        return cast("dict[int, int]", port.__dict__.setdefault("_forebay_segments", {}))
    return {}


def _is_memory_info(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) == 2 and all(map(_is_int, found)) and 0 <= found[0] <= found[1]


def _is_address(found: Any) -> bool:
    return _is_int(found) and 0 < found < LIMIT


# ---- Queues


@lru_cache
def _queue_class(base: Any, backend: str) -> type:
    def wrap_tick(call: str, tick_of: Callable[[Any], Any]) -> _Wrapper:
        """Check that ticks increase; those of a capture are below 0."""
        original = getattr(base, call, None)

        def wrapper(_: _Method) -> _Method:
            def signal(queue: Any) -> Any:
                before = getattr(queue, "_forebay_tick", 0)  # before the call, as other threads may signal
                try:
                    found = original(queue)  # type: ignore[misc]  # not None: this method replaces it
                except Exception as error:
                    _check_error(queue, backend, call, error)
                    raise
                tick = tick_of(found) if tick_of is not _identity else found
                if (type(tick) is not int and not _is_int(tick)) or 0 <= tick <= before:
                    raise _violation(queue, backend, call, f"returned {tick!r}, which is not a tick after {before}")
                if tick > 0:
                    try:  # noqa: SIM105 -- on the path of every event
                        queue._forebay_tick = tick  # noqa: SLF001 -- forebay's own attribute
                    except AttributeError:  # the object cannot have attributes
                        pass
                return found

            return signal

        return wrapper

    def wrap_close(method: _Method) -> _Method:
        def close(queue: Any, timeout: float | None = None) -> bool:
            if timeout is None:
                return cast("bool", method(queue))
            done, result = call_with_timeout(timeout + _GRACE, lambda: cast("bool", method(queue, timeout)))
            if not done:
                warn_unraisable(
                    f"{backend} broke its contract: close({timeout:.1f}) of queue {queue.handle} did not return"
                )
            return bool(result)

        return close

    def wrap_log(method: _Method) -> _Method:
        def log(queue: Any, most: int) -> Callable[[Sequence[int]], list[tuple[int, int]]]:
            found = method(queue, most)
            if not callable(found):
                raise _violation(queue, backend, "log", f"returned {found!r}, which is not callable")

            def times(numbers: Sequence[int]) -> list[tuple[int, int]]:
                try:
                    pairs = found(numbers)
                except Exception as error:
                    _check_error(queue, backend, "log", error)
                    raise
                if isinstance(pairs, list) and len(pairs) == len(numbers) and all(map(_is_span, pairs)):
                    return cast("list[tuple[int, int]]", pairs)
                what = f"returned {pairs!r} for {len(numbers)} pieces of work, not a list of begin and end times"
                raise _violation(queue, backend, "log", what)

            return times

        return log

    wrappers = {
        "log": wrap_log,
        "signal": wrap_tick("signal", _identity),
        "mark": wrap_tick("mark", _tick_of),
        "close": wrap_close,
    }
    checks: dict[str, _Check] = {"reached": (_is_tick, "which is not a tick")}
    checks["last_work_number"] = _is_tick, "which is not the number of a piece of work"
    checks["elapsed_ms"] = _is_time, "which is not a number of milliseconds"
    checks |= dict.fromkeys(("idle", "close"), (_is_bool, "which is not a bool"))
    return _subclass(base, backend, (Queue, *OF_QUEUES), checks, wrappers)


def _identity(tick: Any) -> Any:
    return tick


def _tick_of(mark: Any) -> Any:
    return getattr(mark, "tick", None)


def _is_tick(found: Any) -> bool:
    return (type(found) is int or _is_int(found)) and found >= 0


def _is_span(found: Any) -> bool:
    """Return True for a begin and an end time; the end is 0 while the work runs."""
    if not (isinstance(found, tuple) and len(found) == 2 and all(map(_is_tick, found))):
        return False
    begin, end = found
    return begin < LIMIT and end < LIMIT and (not end or begin <= end)


def _is_time(found: Any) -> bool:
    return isinstance(found, Real) and math.isfinite(found)


def _is_bool(found: Any) -> bool:
    return found is True or found is False


def _has(thing: Any, name: str) -> bool:
    try:
        return hasattr(thing, name)
    except Exception:  # noqa: BLE001 -- a property may raise anything
        return False


def _is_int(value: Any) -> bool:
    if type(value) is int:
        return True
    with suppress(TypeError):
        integer_of(value, "")
        return True
    return False
