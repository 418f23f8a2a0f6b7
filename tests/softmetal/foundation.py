"""The parts of Foundation that a backend uses: errors, URLs, ranges, and what the process knows of the machine."""

from __future__ import annotations

from typing import Any, NamedTuple

from .control import control
from .objects import NSObject

NSLocalizedDescriptionKey = "NSLocalizedDescription"
NSProcessInfoThermalStateNominal, NSProcessInfoThermalStateFair = 0, 1
NSProcessInfoThermalStateSerious, NSProcessInfoThermalStateCritical = 2, 3


class NSError(NSObject):
    __slots__ = ("_code", "_domain", "_info", "_text")

    def __init__(self, domain: str, code: int, text: str, info: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._domain, self._code, self._text, self._info = domain, code, text, info or {}

    def code(self) -> int:
        return self._code

    def domain(self) -> str:
        return self._domain

    def localizedDescription(self) -> str:
        return self._text

    def localizedFailureReason(self) -> None:
        return None

    def userInfo(self) -> dict[str, Any]:
        return {NSLocalizedDescriptionKey: self._text, **self._info}

    def __str__(self) -> str:
        return f'Error Domain={self._domain} Code={self._code} "{self._text}"'


class NSURL(NSObject):
    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    @classmethod
    def fileURLWithPath_(cls, path: str) -> NSURL:
        return cls(str(path))

    def path(self) -> str:
        return self._path


class NSRange(NamedTuple):
    location: int
    length: int


def NSMakeRange(location: int, length: int) -> NSRange:
    return NSRange(location, length)


class NSOperatingSystemVersion(NamedTuple):
    majorVersion: int
    minorVersion: int
    patchVersion: int


class NSProcessInfo(NSObject):
    __slots__ = ()

    @classmethod
    def processInfo(cls) -> NSProcessInfo:
        return cls()

    def thermalState(self) -> int:
        return control.machine.thermal_state

    def operatingSystemVersion(self) -> NSOperatingSystemVersion:
        return NSOperatingSystemVersion(*control.machine.macos)

    def physicalMemory(self) -> int:
        return control.machine.memory

    def isOperatingSystemAtLeastVersion_(self, version: Any) -> bool:
        return control.machine.macos >= tuple(version)

    def isLowPowerModeEnabled(self) -> bool:
        return False

    def processorCount(self) -> int:
        return control.machine.cores
