"""The base of all objects: selectors that are counted and can fail, life and death, autorelease pools."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from .control import Failure, control

_pools = threading.local()
_unreleased: dict[int, NSObject] = {}  # by id: objects with a reference that the program must release


class ObjCError(ValueError):
    """`objc.error`: what PyObjC makes of an NSException."""


@contextmanager
def autorelease_pool() -> Iterator[None]:
    """Release at its end what was autoreleased on this thread since its beginning."""
    stack = _pools.__dict__.setdefault("stack", [])
    stack.append([])
    try:
        yield
    finally:
        stack.pop()


def autoreleased(found: Any, selector: str) -> Any:
    """Give an object to the pool of this thread and return it."""
    stack = _pools.__dict__.setdefault("stack", [])
    if stack:
        stack[-1].append(found)
    elif control.strict_pools:
        control.violated("pool", f"{selector} was called on a thread without an autorelease pool")
    return found


def _failed(selector: str, failure: Failure) -> Any:
    from .foundation import NSError

    domain = failure.domain or "MTLLibraryErrorDomain"
    text = failure.text or f"injected failure of {selector}"
    if selector.endswith("error_"):
        return None, NSError(domain, failure.code, text)
    if selector.startswith(
        ("new", "commandBuffer", "blitCommandEncoder", "computeCommandEncoder", "MTLCreate", "alloc")
    ):
        return None
    if selector == "MTLCopyAllDevices":
        return ()
    raise ObjCError(f"NSInternalInconsistencyException - {text} ({domain} {failure.code})")


def new_reference(result: Any) -> None:
    """Add a reference to what a selector "new..." returns, or to the first part of a pair with an error.

    The caller owns the object. PyObjC up to 12.2.2 knows that for methods of classes only: it retains what a method of
    an instance returns, and the program must release it once (https://github.com/ronaldoussoren/pyobjc/issues/690).
    """
    made = result[0] if isinstance(result, tuple) else result
    if isinstance(made, NSObject):
        _unreleased[id(made)] = made


control.on_new_machine(_unreleased.clear)


def selector(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a selector of a method: each call is counted and can fail."""
    is_new = name.startswith("new") and name[3:4].isupper()

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        owner = getattr(arguments[0], "_protocol", "") if arguments else ""
        failure = control.enter(name, owner)
        if failure is not None and name != "commit":
            return _failed(name, failure)
        if failure is not None:
            control.fail_command_buffer(failure.code, text=failure.text)
        busy = getattr(arguments[0], "_busy", None) if arguments else None
        with exclusively(busy, owner) if busy is not None else nullcontext():
            result = function(*arguments)
        if is_new and control.over_retains:
            new_reference(result)
        control.leave(name, owner)
        return result

    def metadata() -> dict[str, Any]:
        return {"retval": {"already_retained": True} if is_new and not control.over_retains else {}}

    call.__metadata__ = metadata  # type: ignore[attr-defined]  # PyObjC's name
    return call


@contextmanager
def exclusively(busy: Any, owner: str) -> Iterator[None]:
    """Complain if another thread is inside a call of the same object."""
    if not busy.acquire(blocking=False):
        control.violated("threads", f"two threads use a {owner} at once")
    try:
        yield
    finally:
        busy.release()


class NSObject:
    """An object of Objective-C as PyObjC shows it: no attributes of its own, no weak references.

    Public methods of its classes are selectors. Others begin with an underscore.
    """

    __slots__ = ()
    _protocol = "NSObject"
    _busy: Any = None  # a lock, for objects that one thread at a time may use

    def __init_subclass__(cls) -> None:
        cls._protocol = cls.__name__
        for name, member in list(vars(cls).items()):
            if name.startswith("_"):
                continue
            if isinstance(member, classmethod):
                setattr(cls, name, classmethod(selector(name, member.__func__)))
            elif callable(member) and not isinstance(member, type):
                setattr(cls, name, selector(name, member))

    def __init__(self) -> None:
        control.born(self._protocol)

    def __del__(self) -> None:
        if control.forked:
            control.note_violation("fork", f"{self._protocol} is released in a child process")
            return
        control.died(self._protocol)
        self._die()

    def _die(self) -> None:
        """Release what the object has."""

    def release(self) -> None:
        """Give up the reference of `new_reference`. It is not counted as a call and never fails."""
        if _unreleased.pop(id(self), None) is None:
            control.violated("over-release", f"{self._protocol} has no reference that the program owns")

    def __getattr__(self, name: str) -> Any:
        from .availability import SINCE

        if name.startswith("_") or name in SINCE:
            raise AttributeError(f"'{self._protocol}' object has no attribute '{name}'")
        return control.refuse(f"{self._protocol} {name}")

    def __repr__(self) -> str:
        return f"<{self._protocol}: {id(self):#x}>"


class Creatable(NSObject):
    """A class that programs create with new() or alloc().init()."""

    __slots__ = ()

    @classmethod
    def new(cls) -> Any:
        return cls()

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    def init(self) -> Any:
        return self


class Labeled(NSObject):
    """An object with a label for tools."""

    __slots__ = ("_label",)

    def __init__(self) -> None:
        super().__init__()
        self._label: str | None = None

    def label(self) -> str | None:
        return self._label

    def setLabel_(self, label: str | None) -> None:
        self._label = label


def properties(**defaults: Any) -> Callable[[type], type]:
    """Add the properties of a descriptor to its class, which stores them in the slot `_values`."""

    def add(cls: type) -> type:
        for name, default in defaults.items():
            setter = f"set{name[0].upper()}{name[1:]}_"
            if name not in vars(cls):
                setattr(cls, name, selector(name, _getter(name, default)))
            if setter not in vars(cls):
                setattr(cls, setter, selector(setter, _setter(name, default)))
        return cls

    return add


def _getter(name: str, default: Any) -> Callable[..., Any]:
    return lambda self: self._values.get(name, default)


def _setter(name: str, default: Any) -> Callable[..., Any]:
    def put(self: Any, value: Any) -> None:
        self._values[name] = unsigned(value, name) if type(default) is int else value

    return put


class Descriptor(Creatable):
    """A set of properties."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, Any] = {}


def unsigned(value: Any, name: str, bits: int = 64) -> int:
    """Return an unsigned argument, which PyObjC converts to its C type."""
    if isinstance(value, float) or not hasattr(value, "__index__"):
        raise ValueError(f"depythonifying 'unsigned long long', got '{type(value).__name__}' for {name}")
    number = value.__index__()
    if not 0 <= number < 1 << bits:
        raise ValueError(f"depythonifying 'unsigned long long', got {number} for {name}, out of range")
    return int(number)


def instance(value: Any, of: type, name: str) -> Any:
    """Return an argument that is not nil and of a class."""
    if value is None:
        control.violated("nil", f"{name} is nil")
    if not isinstance(value, of):
        raise TypeError(f"{name} is {type(value).__name__}, not {of.__name__}")
    return value


def no_error(argument: Any) -> None:
    """Check the place of an error, which PyObjC returns instead: programs pass None."""
    if argument is not None:
        raise TypeError("the argument `error` is an output: pass None")


def wait_uninterrupted(condition: threading.Condition, ready: Callable[[], bool], limit: float) -> bool:
    """Wait inside a call into C: a signal's handler runs, but its exception is raised after the wait only."""
    interrupted: BaseException | None = None
    while True:
        try:
            found = condition.wait_for(ready, limit)
        except KeyboardInterrupt as error:
            interrupted = error
        else:
            if interrupted is not None:
                raise interrupted
            return found
