"""The parts of PyObjC's module `Foundation` that a backend uses."""

from typing import Any

from softmetal.control import control as _control
from softmetal.foundation import (
    NSURL,
    NSError,
    NSLocalizedDescriptionKey,
    NSMakeRange,
    NSOperatingSystemVersion,
    NSProcessInfo,
    NSProcessInfoThermalStateCritical,
    NSProcessInfoThermalStateFair,
    NSProcessInfoThermalStateNominal,
    NSProcessInfoThermalStateSerious,
    NSRange,
)
from softmetal.objects import NSObject

__all__ = [
    "NSURL",
    "NSError",
    "NSLocalizedDescriptionKey",
    "NSMakeRange",
    "NSObject",
    "NSOperatingSystemVersion",
    "NSProcessInfo",
    "NSProcessInfoThermalStateCritical",
    "NSProcessInfoThermalStateFair",
    "NSProcessInfoThermalStateNominal",
    "NSProcessInfoThermalStateSerious",
    "NSRange",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _control.refuse(f"Foundation.{name}")
