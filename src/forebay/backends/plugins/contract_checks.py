"""What a package's backend says and does is looked at, so that its mistakes are told as its own.

A watched object is of a class made from its own, of which the methods of the contract are looked after; so it stays
itself, and has the abilities it had. What raises anything but forebay's errors, or gives what the contract does not
allow, ends in a DeviceError that names the backend. Objects whose class cannot be changed are taken as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, wraps
from numbers import Real
from typing import Any, TypeVar, cast

from forebay.address_allocator import ALIGNMENT
from forebay.backends.common.abilities import OF_DRIVERS, OF_PORTS, OF_QUEUES, methods
from forebay.backends.common.arguments import LIMIT, integer_of
from forebay.backends.plugins.close_with_timeout import within
from forebay.errors import DeviceError, ForebayError, complain
from forebay.spi import DeviceProps, Driver, Heaps, Port, Queue

__all__ = ["FAILURES", "spelled", "watch"]

_CALLERS = (ValueError, TypeError)  # what may be the caller's fault
FAILURES = (ForebayError, *_CALLERS)  # all that comes of a backend that is watched
_MOST = 1 << 16  # devices
_NUMBERS = {  # of DeviceProps, and the least that each may be
    **dict.fromkeys(("index", "pooled_streams", "multi_processor_count", "max_threads_per_multi_processor"), 0),
    **dict.fromkeys(("total_bytes", "stream_priorities"), 1),
}
_GRACE = 1.0  # seconds that closing may take longer than it was told
_T = TypeVar("_T")
_Method = Callable[..., Any]
_Check = tuple[Callable[[Any], bool], str]  # whether what came is right, and what to say else
_Around = Callable[[_Method], _Method]  # of a method that is looked after makes one that looks at more


def watch(driver: Driver, who: str) -> Driver:
    """The driver, with all that it will open; `who` names the backend in errors."""
    return _watched(driver, _driver_class, who)


def spelled(error: BaseException) -> str:
    """As the last line of its traceback.

    >>> spelled(KeyError("x")), spelled(StopIteration())
    ("KeyError: 'x'", 'StopIteration')
    """
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _watched(thing: _T, make: Callable[[type, str], type], who: str) -> _T:
    if not hasattr(thing, "_forebay_watches"):  # else it was given before
        with suppress(TypeError):  # of a class that can have no such subclass
            thing.__class__ = make(type(thing), who)
    return thing


def _made(
    usual: type, who: str, contracts: Iterable[type], checks: Mapping[str, _Check], around: Mapping[str, _Around]
) -> type:
    def looked_after(name: str, original: _Method, check: _Check | None) -> _Method:
        right, wrong = check or (None, "")

        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                found = original(self, *arguments, **options)
            except Exception as error:
                _tell(self, who, name, error)
                raise
            if right is None or right(found):
                return found
            raise _broken(self, who, name, f"gave {found!r}, {wrong}")

        return method

    body: dict[str, Any] = {"__slots__": (), "__module__": usual.__module__, "__qualname__": usual.__qualname__}
    body["_forebay_watches"] = who
    for name in methods(*contracts):
        original = getattr(usual, name, None)
        if callable(original):  # else it has not that ability, or only this very object has it
            method = looked_after(name, original, checks.get(name))
            body[name] = wraps(original)(around[name](method) if name in around else method)
    return type(usual)(usual.__name__, (usual,), body)


def _tell(thing: Any, who: str, call: str, error: Exception) -> None:
    """DeviceError for what a backend may not raise; what may be its caller's fault is given a note."""
    if isinstance(error, _CALLERS):
        error.add_note(f"raised in {call}() by {who}")
    elif not isinstance(error, ForebayError):
        raise _broken(thing, who, call, f"raised {spelled(error)}") from error


def _broken(thing: Any, who: str, call: str, what: str) -> DeviceError:
    props = getattr(thing, "props", None)
    device = f"{props.kind}:{props.index}" if isinstance(props, DeviceProps) else ""
    return DeviceError(f"{who} broke its contract: {call}() {what}", call=call, device=device)


# ---- Drivers


@lru_cache
def _driver_class(usual: Any, who: str) -> type:
    def counted(driver: Any) -> tuple[int, str]:
        """How many devices, and what is wrong with that: as it must not raise, and nobody else must suffer."""
        try:
            found = usual.count(driver)
        except Exception as error:  # noqa: BLE001 -- see above
            return 0, f"{who} broke its contract: count() raised {spelled(error)}"
        if not _is_int(found) or not 0 <= found <= _MOST:
            return 0, f"{who} broke its contract: count() gave {found!r}, which is no number of devices"
        return int(found), ""

    def why_not(driver: Any) -> str:
        count, wrong = counted(driver)
        if count or wrong:
            return wrong
        try:
            said = usual.why_not(driver)
        except Exception as error:  # noqa: BLE001 -- as above
            return f"{who} has no device, and why_not() raised {spelled(error)}"
        if isinstance(said, str) and said:
            return said
        return f"{who} has no device, and why_not() gave {said!r}"

    def opening(method: _Method) -> _Method:
        def open(driver: Any, index: int) -> Port:  # noqa: A001 -- its name in the contract
            port = method(driver, index)
            if lacking := [name for name in ("props", *methods(Port)) if not _has(port, name)]:
                raise _broken(driver, who, "open", f"gave {port!r}, which has no {', '.join(lacking)}")
            try:
                _check_props(driver, port.props, who, "open")
            except DeviceError:
                with suppress(Exception):  # it is told already that this backend is wrong
                    port.close()
                raise
            return cast("Port", _watched(port, _port_class, who))

        return open

    def describing(method: _Method) -> _Method:
        def describe(driver: Any, index: int) -> DeviceProps:
            props = method(driver, index)
            _check_props(driver, props, who, "describe")
            return cast("DeviceProps", props)

        return describe

    around: dict[str, _Around] = {"open": opening, "describe": describing}
    around["count"] = lambda _: lambda driver: counted(driver)[0]
    around["why_not"] = lambda _: why_not
    return _made(usual, who, (Driver, *OF_DRIVERS), {}, around)


def _check_props(driver: Any, props: Any, who: str, call: str) -> None:
    if not isinstance(props, DeviceProps):
        raise _broken(driver, who, call, f"gave a device whose props are {props!r}, not DeviceProps")
    if props.kind != driver.kind:
        raise _broken(driver, who, call, f"gave a device of kind {props.kind!r}, not {driver.kind!r}")
    if not isinstance(props.heaps, Heaps | None):
        raise _broken(driver, who, call, f"gave a device whose heaps are {props.heaps!r}, not Heaps")
    if not isinstance(props.name, str):
        raise _broken(driver, who, call, f"gave a device whose name is {props.name!r}")
    if not isinstance(props.details, Mapping):
        raise _broken(driver, who, call, f"gave a device whose details are {props.details!r}, not a mapping")
    numbers = {name: getattr(props, name) for name in _NUMBERS}
    numbers |= {name: props.details[name] for name in ("major", "minor") if name in props.details}
    for name, number in numbers.items():
        if not _is_int(number) or not _NUMBERS.get(name, 0) <= number < LIMIT:
            raise _broken(driver, who, call, f"gave a device whose {name} is {number!r}")


# ---- Ports


@lru_cache
def _port_class(usual: Any, who: str) -> type:
    def reserving(method: _Method) -> _Method:
        def reserve(port: Any, nbytes: int) -> int:
            address = method(port, nbytes)
            if not _is_int(address) or not 0 < address < LIMIT - nbytes:
                raise _broken(port, who, "reserve", f"gave {address!r}, which is no address")
            mine = _taken(port)
            for start, size in tuple(mine.items()):  # a destructor may release something meanwhile
                if start < address + nbytes and address < start + size:
                    what = f"gave {nbytes} bytes at {address:#x}, where it gave {size} at {start:#x} before"
                    raise _broken(port, who, "reserve", what)
            if address % ALIGNMENT:
                with suppress(Exception):  # so that it is not lost
                    usual.release(port, address)
                raise _broken(port, who, "reserve", f"gave {address:#x}, which is not aligned to {ALIGNMENT} bytes")
            mine[address] = nbytes
            return int(address)

        return reserve

    def releasing(method: _Method) -> _Method:
        def release(port: Any, address: int) -> None:
            nbytes = _taken(port).pop(address, None)  # first: another thread may get it at once
            try:
                method(port, address)
            except BaseException:
                if nbytes is not None:
                    _taken(port)[address] = nbytes
                raise

        return release

    def closing(method: _Method) -> _Method:
        def close(port: Any) -> None:
            method(port)
            _taken(port).clear()

        return close

    def queueing(method: _Method) -> _Method:
        def queue(port: Any, priority: int = 0) -> Queue:
            found = method(port, priority)
            if lacking := [name for name in ("handle", *methods(Queue)) if not _has(found, name)]:
                raise _broken(port, who, "queue", f"gave {found!r}, which has no {', '.join(lacking)}")
            if not _is_int(found.handle) or not 0 <= found.handle < LIMIT:
                raise _broken(port, who, "queue", f"gave a queue whose handle is {found.handle!r}")
            return cast("Queue", _watched(found, _queue_class, who))

        return queue

    checks: dict[str, _Check] = {
        "memory_info": (_is_memory, "which is not how much is free, and how much there is"),
        **dict.fromkeys(("pin", "reserve_managed", "reserve_space"), (_is_address, "which is no address")),
    }
    around: dict[str, _Around] = {
        "reserve": reserving,
        "release": releasing,
        "queue": queueing,
        "close": closing,
    }
    return _made(usual, who, (Port, *OF_PORTS), checks, around)


def _taken(port: Any) -> dict[int, int]:
    """What was reserved, addresses and sizes. Nothing is known of a port that takes no attributes."""
    with suppress(AttributeError):
        return cast("dict[int, int]", port.__dict__.setdefault("_forebay_taken", {}))
    return {}


def _is_memory(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) == 2 and all(map(_is_int, found)) and 0 <= found[0] <= found[1]


def _is_address(found: Any) -> bool:
    return _is_int(found) and 0 < found < LIMIT


# ---- Queues


@lru_cache
def _queue_class(usual: Any, who: str) -> type:
    def counting(call: str, tick_of: Callable[[Any], Any]) -> _Around:
        """Ticks go up; those of a recording are below 0."""
        original = getattr(usual, call, None)

        def around(_: _Method) -> _Method:
            def signal(queue: Any) -> Any:
                before = getattr(queue, "_forebay_tick", 0)  # first, as other threads may signal meanwhile
                try:
                    found = original(queue)  # type: ignore[misc]  # it has it, else nobody calls this
                except Exception as error:
                    _tell(queue, who, call, error)
                    raise
                tick = tick_of(found) if tick_of is not _itself else found
                if (type(tick) is not int and not _is_int(tick)) or 0 <= tick <= before:
                    raise _broken(queue, who, call, f"gave {tick!r}, which is no tick after {before}")
                if tick > 0:
                    try:  # noqa: SIM105 -- this is every event
                        queue._forebay_tick = tick  # noqa: SLF001 -- ours
                    except AttributeError:  # an object that takes none
                        pass
                return found

            return signal

        return around

    def closing(method: _Method) -> _Method:
        def close(queue: Any, timeout: float | None = None) -> bool:
            if timeout is None:
                return cast("bool", method(queue))
            done, said = within(timeout + _GRACE, lambda: cast("bool", method(queue, timeout)))
            if not done:
                complain(f"{who} broke its contract: close({timeout:.1f}) of queue {queue.handle} does not come back")
            return bool(said)

        return close

    def logging(method: _Method) -> _Method:
        def log(queue: Any, most: int) -> Callable[[int], tuple[int, int]]:
            found = method(queue, most)
            if not callable(found):
                raise _broken(queue, who, "log", f"gave {found!r}, which is not to be called")

            def times(number: int) -> tuple[int, int]:
                try:
                    pair = found(number)
                except Exception as error:
                    _tell(queue, who, "log", error)
                    raise
                if _is_span(pair):
                    return cast("tuple[int, int]", pair)
                raise _broken(
                    queue, who, "log", f"said of a piece of work {pair!r}, which is not when it began and ended"
                )

            return times

        return log

    around = {
        "log": logging,
        "signal": counting("signal", _itself),
        "mark": counting("mark", _tick_of),
        "close": closing,
    }
    checks: dict[str, _Check] = {"reached": (_is_tick, "which is no tick")}
    checks["given"] = _is_tick, "which is no number of a piece of work"
    checks["elapsed_ms"] = _is_time, "which is no number of milliseconds"
    checks |= dict.fromkeys(("idle", "close"), (_is_truth, "not True or False"))
    return _made(usual, who, (Queue, *OF_QUEUES), checks, around)


def _itself(tick: Any) -> Any:
    return tick


def _tick_of(mark: Any) -> Any:
    return getattr(mark, "tick", None)


def _is_tick(found: Any) -> bool:
    return (type(found) is int or _is_int(found)) and found >= 0


def _is_span(found: Any) -> bool:
    """Two times; the later one is 0 while there is none yet."""
    if not (isinstance(found, tuple) and len(found) == 2 and all(map(_is_tick, found))):
        return False
    begin, end = found
    return begin < LIMIT and end < LIMIT and (not end or begin <= end)


def _is_time(found: Any) -> bool:
    return isinstance(found, Real) and math.isfinite(found)


def _is_truth(found: Any) -> bool:
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
