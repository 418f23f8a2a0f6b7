"""Registry of device kinds: the built-in backends and those of installed packages.

A package provides a backend with an entry point in the group `forebay.backends`: its name is the kind, its value the
Driver class. A backend is imported when its kind is first looked up; the import does not open a device.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from forebay._base import config
from forebay._base.device_spec import Device
from forebay._base.suggestions import did_you_mean
from forebay.backends.common.abilities import methods
from forebay.errors import DeviceError, ForebayError, ForebayWarning
from forebay.spi import Driver, Port

__all__ = [
    "EMULATED",
    "GROUP",
    "default_profile",
    "driver",
    "drivers",
    "emulated_devices",
    "emulated_driver",
    "override_driver",
    "why_not",
]

GROUP = "forebay.backends"  # the group of entry points

_BUILT_IN = {
    "cpu": ("forebay.backends.host.driver", "HostDriver"),
    "cuda": ("forebay.backends.nvidia.driver", "CudaDriver"),
    "mps": ("forebay.backends.metal.driver", "MetalDriver"),
}
_DEFAULT_PROFILES = {"cuda": "h200", "mps": "apple_m3_max", "mtia": "mtia_v2"}
EMULATED = tuple(_DEFAULT_PROFILES)  # kinds that can be emulated
# Known kinds without a backend in this version, and why.
_PLANNED = {
    "mtia": "this version of forebay has no backend for mtia, but it can emulate one: forebay.emulate('mtia')",
}


def drivers() -> Mapping[str, Driver]:
    """Return the drivers of all installed kinds.

    A backend that cannot be imported is included: its driver counts no devices and `why_not` returns the reason.
    """
    return _drivers


def driver(kind: str) -> Driver:
    """Return the driver of a kind. Raises ForebayError, with the installed kinds, if the kind is unknown."""
    if (found := _drivers.get(kind)) is not None:
        return found
    if kind in _PLANNED:
        return _UnavailableDriver(kind, _PLANNED[kind])
    hint = did_you_mean(kind, {*_drivers, *_PLANNED})
    raise ForebayError(f"{kind!r} is not a kind of device; installed kinds: {', '.join(sorted(_drivers))}{hint}")


def why_not(kind: str) -> str:
    """Return the reason why no device of a kind can be opened, as one sentence; "" if there are devices.

    Does not open a device.

    Parameters
    ----------
    kind : str
        Device kind, for example "cuda".

    Examples
    --------
    >>> import forebay
    >>> forebay.why_not("cpu")
    ''
    """
    try:
        return driver(kind).why_not()
    except ForebayError as error:
        return str(error)


@contextmanager
def override_driver(new: Driver) -> Iterator[None]:
    """Override the driver of the kind `new.kind` inside the block, in the whole process; for tests and emulation."""
    overrides = _drivers.overrides.setdefault(new.kind, [])
    overrides.append(new)
    try:
        yield
    finally:
        overrides.remove(new)  # not pop(): overlapping emulations may end in any order


@contextmanager
def emulated_devices(kind: str, count: int, profile: str) -> Iterator[None]:
    """Override a kind with emulated devices inside the block. Raises ValueError if the profile is of another kind."""
    with override_driver(emulated_driver(kind, count, profile)):
        yield


def default_profile(kind: str) -> str:
    """Return the profile of emulated devices of a kind if none is named; "" if the kind cannot be emulated."""
    return _DEFAULT_PROFILES.get(kind, "")


def emulated_driver(
    kind: str,
    count: int = 1,
    profile: str = "",
    memory: int | None = None,
    *,
    guard: bool = False,
    reserve: int = 0,
) -> Driver:
    """Return a driver of emulated devices. Raises ValueError if the profile is of another kind."""
    from forebay.backends.emulated.driver import EmulatedDriver  # needs the compiled core, and few programs use it

    return EmulatedDriver(kind, count, profile or default_profile(kind), memory, guard=guard, reserve=reserve)


def _emulated_by_environment() -> dict[str, Callable[[], Driver]]:
    """Return driver factories for FOREBAY_EMULATE. If its value is invalid, every kind it could mean has no devices."""
    try:
        requested = config.EMULATE.value()
    except ValueError as error:
        return _all_absent(str(error))
    for each in requested:
        if each.kind not in EMULATED:
            kinds = ", ".join(EMULATED)
            return _all_absent(f"environment variable {config.EMULATE.name}: {each.kind!r} is not one of {kinds}")

    def make(each: config.Emulated) -> Driver:
        try:
            return emulated_driver(
                each.kind, each.count, each.profile, each.memory, guard=each.guard, reserve=each.reserve
            )
        except (ValueError, ImportError) as error:
            return _UnavailableDriver(each.kind, f"environment variable {config.EMULATE.name}: {error}")

    return {each.kind: partial(make, each) for each in requested}


def _all_absent(reason: str) -> dict[str, Callable[[], Driver]]:
    return {kind: partial(_UnavailableDriver, kind, reason) for kind in EMULATED}


class _UnavailableDriver:
    """A driver without devices, which reports the reason."""

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
    """Cache of drivers, each constructed on first lookup."""

    def __init__(self) -> None:
        self._made: dict[str, Driver] = {}
        self.overrides: dict[str, list[Driver]] = {}  # by kind; the last one is in effect
        self._entry_points: dict[str, tuple[Callable[[], Any], str]] | None = None

    def __getitem__(self, kind: str) -> Driver:
        if (override := next(reversed(self.overrides.get(kind, ())), None)) is not None:
            return override
        if made := self._made.get(kind):
            return made
        if kind in (emulated := _emulated_by_environment()):
            return self._made.setdefault(kind, emulated[kind]())
        # No lock: an import may run anything. Two threads may both construct a driver; one of them is kept.
        if kind in _BUILT_IN:
            new = _make_driver(kind, partial(_load_built_in, kind), "; `forebay doctor` reports the remedy")
        else:
            load, origin = self._packaged()[kind]
            new = _make_driver(kind, load, f" ({origin})")
            if not isinstance(new, _UnavailableDriver):
                from forebay.backends.plugins.contract_checks import wrap_with_checks

                # See Note [Checked backends keep their identity].
                new = wrap_with_checks(new, f"the backend for {kind} ({origin})")
        return self._made.setdefault(kind, new)

    def __contains__(self, kind: object) -> bool:
        kinds = (self._overridden(), self._made, _BUILT_IN, _emulated_by_environment(), self._packaged())
        return any(kind in each for each in kinds)

    def __iter__(self) -> Iterator[str]:
        kinds = [*_BUILT_IN, *_emulated_by_environment(), *self._packaged(), *self._made, *self._overridden()]
        return iter(list(dict.fromkeys(kinds)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _overridden(self) -> list[str]:
        return [kind for kind, overrides in tuple(self.overrides.items()) if overrides]

    def _packaged(self) -> dict[str, tuple[Callable[[], Any], str]]:
        """Return the loader and the name of each package's backend. The search takes milliseconds and runs once."""
        if self._entry_points is None:
            from importlib.metadata import entry_points  # imports half the standard library

            found: dict[str, tuple[Callable[[], Any], str]] = {}
            messages = list[str]()
            values = {kind: ":".join(place) for kind, place in _BUILT_IN.items()}
            names = dict(values)
            for entry in entry_points(group=GROUP):
                package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
                name = f"{entry.value}{package}"
                names.setdefault(entry.name, name)
                if values.setdefault(entry.name, entry.value) == entry.value:
                    found.setdefault(entry.name, (entry.load, name))
                else:
                    used = names[entry.name]
                    messages.append(f"two backends provide kind {entry.name!r}: {used} is used, {name} is ignored")
            self._entry_points = found  # before the warnings, which may raise: then only the first lookup does
            for message in messages:
                warnings.warn(message, ForebayWarning, stacklevel=4)
        return self._entry_points


def _load_built_in(kind: str) -> Any:
    importlib.import_module("forebay._core")  # every built-in backend needs it, and its import error is the clearest
    module, name = _BUILT_IN[kind]
    return getattr(importlib.import_module(module), name)


def _make_driver(kind: str, load: Callable[[], Any], advice: str = "") -> Driver:
    """Construct the driver that `load` returns the class of; on any failure return one that reports it."""
    try:
        Device(kind, 0)
        new: Driver = load()()
        if missing := [name for name in ("kind", *methods(Driver)) if not hasattr(new, name)]:
            reason = f"its driver has no {', '.join(missing)}"
        else:
            reason = "" if new.kind == kind else f"its driver reports the kind {new.kind!r}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- one broken package must not break the others
        reason = f"{type(error).__name__}: {error}"
    return _UnavailableDriver(kind, f"the backend for {kind} could not be loaded: {reason}{advice}") if reason else new


_drivers = _Drivers()
