"""The vendor contract: the protocols that a backend implements. Nothing else in forebay may access a device.

A backend supplies a `Driver`, whose `open` returns a `Port`, whose `queue` returns `Queue` objects. All other protocols
are optional abilities: an object has an ability if it has the methods, which forebay tests with `isinstance`.
`spi/required.py` is the part that every backend needs.

Rules that hold for every method:

* Addresses, handles and ticks are ints. Sizes are ints in bytes, greater than 0.
* Host and device addresses share one address space: `Queue.copy` finds the direction of a copy from the addresses.
* A method that fails raises `DeviceError` with the driver's own code and message, or `OutOfMemory` if the device is
  full. No method returns an error code.
* Invalid arguments raise ValueError or TypeError. A closed object raises `WrongState`.
* No method calls back into forebay.
"""

from __future__ import annotations

from forebay.spi.captures import CapturedGraph, CapturedNode, Captures
from forebay.spi.drivers import Describes, Emulates, Peers, Sensors, Telemetry
from forebay.spi.ports import (
    ExternalQueues,
    Growable,
    IdentifiesMemory,
    Managed,
    PinnedHost,
    PinsInPlace,
    ProcessUsage,
    ReportsIdle,
    Resizable,
    SurvivesFork,
)
from forebay.spi.properties import DeviceProps, Heaps
from forebay.spi.queues import (
    Draw,
    ExecutionLog,
    Launches,
    LazilyBacked,
    Mark,
    RandomNumbers,
    StridedCopies,
    StridedCopy,
    Timing,
)
from forebay.spi.required import SEGMENT_ALIGNMENT, Driver, Port, Queue
from forebay.spi.shaders import Shader, ShaderLibrary, Shaders, StorageModes, ToolTraces
from forebay.spi.sharing import SharedMark, Shares

__all__ = [
    "SEGMENT_ALIGNMENT",
    "CapturedGraph",
    "CapturedNode",
    "Captures",
    "Describes",
    "DeviceProps",
    "Draw",
    "Driver",
    "Emulates",
    "ExecutionLog",
    "ExternalQueues",
    "Growable",
    "Heaps",
    "IdentifiesMemory",
    "Launches",
    "LazilyBacked",
    "Managed",
    "Mark",
    "Peers",
    "PinnedHost",
    "PinsInPlace",
    "Port",
    "ProcessUsage",
    "Queue",
    "RandomNumbers",
    "ReportsIdle",
    "Resizable",
    "Sensors",
    "Shader",
    "ShaderLibrary",
    "Shaders",
    "SharedMark",
    "Shares",
    "StorageModes",
    "StridedCopies",
    "StridedCopy",
    "SurvivesFork",
    "Telemetry",
    "Timing",
    "ToolTraces",
]
