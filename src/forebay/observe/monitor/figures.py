"""Figures of one process at one moment, and their JSON form, which is checked when it is read."""

from __future__ import annotations

import json
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar

from forebay._base.untrusted import printable, shortened
from forebay.observe.monitor.live_stacks import LiveStacks

__all__ = ["DeviceFigures", "ProcessFigures", "Readings", "SiteFigures"]

_T = TypeVar("_T")
_MAX_RECORDS, _MAX_VALUES, _MAX_TEXT = 1000, 500_000, 1000  # items of a tuple, by their kind; characters


@dataclass(frozen=True, slots=True)
class Readings:
    """Sensor readings of a device; None where it has no such sensor."""

    memory_used: int | None = None  #: bytes of device memory, used by all processes
    memory_total: int | None = None  #: bytes of device memory in total
    busy: float | None = None  #: fraction of the last second in which the device ran work, from 0 to 1
    temperature: int | None = None  #: degrees Celsius
    power: int | None = None  #: milliwatts
    clock: int | None = None  #: megahertz


@dataclass(frozen=True, slots=True)
class SiteFigures:
    """Live memory of one allocation site."""

    label: str  #: the site, such as ``train.py:42 forward``
    nbytes: int  #: bytes of its live allocations
    count: int  #: number of its live allocations
    library: str = ""  #: the file and line of a library that it calls for most of the bytes; "" for none


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Figures of one open device of one process. Sizes are in bytes."""

    device: str  #: the device, such as ``cuda:0``
    name: str  #: name of the hardware
    emulated: bool  #: whether the device is emulated
    capacity: int | None  #: the device's memory; None if only the system limits it
    allocated: int  #: memory in live blocks
    reserved: int  #: memory in segments
    peak: int  #: peak of `allocated`
    allocations: int  #: allocations since the device was opened
    frees: int  #: frees since the device was opened
    retries: int  #: allocations repeated after the cache was emptied, since the device was opened
    ooms: int  #: refusals since the device was opened
    streams: int  #: queues of the device
    busy_streams: int  #: queues with pending work
    readings: Readings  #: the sensors
    sites: tuple[SiteFigures, ...] = ()  #: allocation sites with the most live memory; the receiver finds them
    stacks: LiveStacks = field(
        default_factory=LiveStacks
    )  #: stacks with the most live memory; empty without a recorded history


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Figures of one process."""

    pid: int  #: process id
    program: str  #: the program and its arguments
    seconds: float  #: seconds since the process began to offer its figures; under `forebay run`, its run time
    taken_at: float  #: Unix time in seconds
    resident: int  #: bytes of resident memory
    devices: tuple[DeviceFigures, ...]  #: the open devices

    def to_json(self) -> str:
        """Return the figures as a JSON object with a key for each field."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> ProcessFigures:
        """Read the result of `to_json`.

        Characters that control a terminal are replaced by their escape sequences.

        Parameters
        ----------
        text : str or bytes
            JSON.

        Raises
        ------
        ValueError
            If the text is not JSON, a field is missing, unknown or of another type, or a number is negative or does not
            fit a signed 64-bit integer.
        """
        try:
            return _read(cls, json.loads(text), cls.__name__)
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None


@cache
def _types(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _read(expected: type[_T], value: Any, where: str) -> _T:
    """Convert JSON to a dataclass, tuple or plain value of the expected type. Raises ValueError."""
    if is_dataclass(expected):
        names = [field.name for field in fields(expected)]
        if not isinstance(value, dict) or value.keys() != set(names):
            raise ValueError(f"{where} must be an object with the keys {', '.join(names)}")
        types = _types(expected)
        return expected(**{name: _read(types[name], value[name], f"{where}.{name}") for name in names})
    if typing.get_origin(expected) is tuple and isinstance(value, list):
        item = typing.get_args(expected)[0]
        most = _MAX_RECORDS if is_dataclass(item) else _MAX_VALUES
        if len(value) > most:
            raise ValueError(f"{where} has more than {most:,} items")
        return tuple(_read(item, each, f"{where}[{at}]") for at, each in enumerate(value))  # type: ignore[return-value]  # the tuple's type
    accepted = set(typing.get_args(expected)) if isinstance(expected, UnionType) else {expected}
    if float in accepted and type(value) is int and abs(value) < 1 << 63:
        value = float(value)
    if type(value) not in accepted:
        raise ValueError(f"{where} must be {expected if isinstance(expected, UnionType) else expected.__name__}")
    if isinstance(value, int | float) and not 0 <= value < 1 << 63:
        raise ValueError(f"{where} must be from 0 to 2^63 - 1")
    if isinstance(value, str):
        value = printable(shortened(value, _MAX_TEXT))
    return value  # type: ignore[no-any-return]  # checked above
