"""The selectors that the stand-in has, by class."""

from __future__ import annotations

import inspect

from . import blits, captures, compute, counters, devices, foundation, indirect, libraries, queues, resources
from .objects import Creatable, NSObject

_OTHERS = (
    resources.VarList,
    foundation.NSError,
    foundation.NSURL,
    foundation.NSProcessInfo,
    captures.MTLCaptureManager,
)


def _subclasses(of: type) -> set[type]:
    return {of}.union(*(_subclasses(each) for each in of.__subclasses__()))


def of_class(cls: type) -> list[str]:
    """Return the selectors of a class, with those that it inherits."""
    found = [name for name, member in inspect.getmembers(cls, callable) if not name.startswith("_")]
    return [name for name in found if name not in vars(NSObject)]


def of_protocols() -> dict[str, type]:
    """Return the selectors of Metal's protocols, which PyObjC knows from its metadata only, with a class of each."""
    _ = blits, compute, counters, devices, indirect, libraries, queues  # they define classes
    protocols = [each for each in _subclasses(NSObject) if not issubclass(each, (Creatable, *_OTHERS))]
    return {name: each for each in protocols for name in of_class(each)}
