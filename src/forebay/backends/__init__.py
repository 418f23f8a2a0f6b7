"""Which kinds of device there are: the built-in backends, and those that installed packages bring.

A package brings one with an entry point in the group `forebay.backends`: its name is the kind, its value the class of
the Driver. A backend is imported when its kind is first asked for, and importing it opens nothing.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from forebay import config
from forebay.backends.common.abilities import methods
from forebay.device_spec import Device
from forebay.errors import DeviceError, ForebayError, ForebayWarning
from forebay.spi import Driver, Port

__all__ = ["EMULATED", "GROUP", "driver", "drivers", "emulating", "emulator", "registered", "why_not"]

GROUP = "forebay.backends"  # the group of entry points

_BUILT_IN = {"host": ("forebay.backends.host.driver", "HostDriver")}
_PROFILES = {"cuda": "h200", "mps": "apple_m3_max", "mtia": "mtia_v2"}  # of emulated devices that nothing is said of
EMULATED = tuple(_PROFILES)  # the kinds that can be
# Kinds that forebay knows and has nothing for yet, and what to say: PyTorch's words first, where it has some.
_PLANNED = {
    "cuda": "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver "
    "from http://www.nvidia.com/Download/index.aspx\nThis version of forebay has no backend for cuda yet, but it can "
    "emulate one: forebay.emulate('cuda')",
    "mps": "this version of forebay has no backend for mps yet, but it can emulate one: forebay.emulate('mps')",
    "mtia": "this version of forebay has no backend for mtia, but it can emulate one: forebay.emulate('mtia')",
}


def drivers() -> Mapping[str, Driver]:
    """All installed kinds and their drivers.

    A backend that cannot be imported is there, too: its driver counts no devices, and its `why_not` tells the reason.
    """
    return _drivers


def driver(kind: str) -> Driver:
    """The driver of a kind; ForebayError, with the kinds there are, for one that nobody knows."""
    if (found := _drivers.get(kind)) is not None:
        return found
    if kind in _PLANNED:
        return _Absent(kind, _PLANNED[kind])
    raise ForebayError(f"{kind!r} is not a kind of device; installed are {', '.join(sorted(_drivers))}")


def why_not(kind: str) -> str:
    """Why no device of a kind can be opened, in one sentence; empty when one can."""
    try:
        return driver(kind).why_not()
    except ForebayError as error:
        return str(error)


@contextmanager
def registered(new: Driver) -> Iterator[None]:
    """Lets `driver(new.kind)` be `new` for a while, in the whole process: for tests and emulation."""
    instead = _drivers.instead.setdefault(new.kind, [])
    instead.append(new)
    try:
        yield
    finally:
        instead.remove(new)  # not the last: of two emulations the first to begin may end first


@contextmanager
def emulating(kind: str, count: int, profile: str, memory: int | None = None, *, guard: bool = False) -> Iterator[None]:
    """Emulated devices are the kind's, meanwhile. ValueError for a profile that is not the kind's."""
    with registered(emulator(kind, count, profile, memory, guard=guard)):
        yield


def emulator(kind: str, count: int = 1, profile: str = "", memory: int | None = None, *, guard: bool = False) -> Driver:
    """Devices of the kind that this machine stands in for. ValueError for a profile that is not the kind's."""
    from forebay.backends.emulated.driver import EmulatedDriver  # needs the core, and few programs need it

    return EmulatedDriver(kind, count, profile or _PROFILES.get(kind, ""), memory, guard=guard)


def _emulated_by_environment() -> dict[str, Callable[[], Driver]]:
    """What FOREBAY_EMULATE asks for. If that makes no sense, every kind that it could have meant says so."""
    try:
        asked = config.EMULATE.value()
    except ValueError as error:
        return _all_absent(str(error))
    for each in asked:
        if each.kind not in _PLANNED:
            kinds = ", ".join(_PLANNED)
            return _all_absent(f"environment variable {config.EMULATE.name}: {each.kind!r} is none of {kinds}")

    def make(each: config.Emulated) -> Driver:
        try:
            return emulator(each.kind, each.count, each.profile, guard=each.guard)
        except (ValueError, ImportError) as error:
            return _Absent(each.kind, f"environment variable {config.EMULATE.name}: {error}")

    return {each.kind: partial(make, each) for each in asked}


def _all_absent(reason: str) -> dict[str, Callable[[], Driver]]:
    return {kind: partial(_Absent, kind, reason) for kind in _PLANNED}


class _Absent:
    """A driver that has no devices, only a reason."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        self.reason = reason

    def count(self) -> int:
        return 0

    def why_not(self) -> str:
        return self.reason

    def open(self, index: int) -> Port:
        raise DeviceError(self.reason, call="open", device=f"{self.kind}:{index}")


class _Drivers(Mapping[str, Driver]):
    """Makes a driver when it is first asked for, and keeps it."""

    def __init__(self) -> None:
        self._made: dict[str, Driver] = {}
        self.instead: dict[str, list[Driver]] = {}  # of each kind the last one is its driver, while there is one
        self._packaged: dict[str, tuple[Callable[[], Any], str]] | None = None

    def __getitem__(self, kind: str) -> Driver:
        if (found := next(reversed(self.instead.get(kind, ())), None)) is not None:
            return found
        if made := self._made.get(kind):
            return made
        if kind in (emulated := _emulated_by_environment()):
            return self._made.setdefault(kind, emulated[kind]())
        # No lock is held: the import may run anything. Two threads may both make a driver; one is kept.
        if kind in _BUILT_IN:
            new = _load(kind, partial(_built_in, kind), "; `forebay doctor` says what to do")
        else:
            load, who = self._found()[kind]
            new = _load(kind, load, f" ({who})")
            if not isinstance(new, _Absent):
                from forebay.backends.plugins.contract_checks import watch

                new = watch(new, f"the backend for {kind} ({who})")
        return self._made.setdefault(kind, new)

    def __contains__(self, kind: object) -> bool:
        kinds = (self._instead(), self._made, _BUILT_IN, _emulated_by_environment(), self._found())
        return any(kind in each for each in kinds)

    def __iter__(self) -> Iterator[str]:
        return iter(
            list(
                dict.fromkeys([*_BUILT_IN, *_emulated_by_environment(), *self._found(), *self._made, *self._instead()])
            )
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _instead(self) -> list[str]:
        return [kind for kind, found in tuple(self.instead.items()) if found]

    def _found(self) -> dict[str, tuple[Callable[[], Any], str]]:
        """How to load what packages bring, and its name. Looking for it takes milliseconds: done once, and late."""
        if self._packaged is None:
            from importlib.metadata import entry_points  # imports half the standard library

            found: dict[str, tuple[Callable[[], Any], str]] = {}
            unused = list[str]()
            values = {kind: ":".join(place) for kind, place in _BUILT_IN.items()}
            names = dict(values)
            for entry in entry_points(group=GROUP):
                package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
                name = f"{entry.value}{package}"
                names.setdefault(entry.name, name)
                if values.setdefault(entry.name, entry.value) == entry.value:
                    found.setdefault(entry.name, (entry.load, name))
                else:
                    unused.append(f"two backends bring kind {entry.name!r}: {names[entry.name]} is used, {name} not")
            self._packaged = found  # first: a warning may be an error, which is told once
            for message in unused:
                warnings.warn(message, ForebayWarning, stacklevel=4)
        return self._packaged


def _built_in(kind: str) -> Any:
    importlib.import_module("forebay._core")  # all of ours need it, and its own words say best what is wrong with it
    module, name = _BUILT_IN[kind]
    return getattr(importlib.import_module(module), name)


def _load(kind: str, load: Callable[[], Any], advice: str = "") -> Driver:
    try:
        Device(kind, 0)
        new: Driver = load()()
        if lacking := [name for name in ("kind", *methods(Driver)) if not hasattr(new, name)]:
            reason = f"its driver has no {', '.join(lacking)}"
        else:
            reason = "" if new.kind == kind else f"its driver says that its kind is {new.kind!r}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what is wrong with one package must not break the others
        reason = f"{type(error).__name__}: {error}"
    return _Absent(kind, f"the backend for {kind} could not be loaded: {reason}{advice}") if reason else new


_drivers = _Drivers()
