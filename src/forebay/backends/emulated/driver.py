"""Driver of emulated devices: this machine's memory and threads with the properties of a hardware profile.

A page costs nothing until it is touched, so a profile may have more memory than the machine. The host may not access
device memory, as with a GPU; queued work may.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from forebay import profiles
from forebay._base.byte_sizes import format_bytes
from forebay._base.suggestions import did_you_mean
from forebay.backends.common.arguments import integer_of
from forebay.backends.common.cuda_errors import INVALID_DEVICE
from forebay.backends.common.mmap import commit_pages
from forebay.backends.emulated.memory_budget import budget, guard, guard_reporter, unguard
from forebay.backends.emulated.queue import EmulatedQueue
from forebay.backends.emulated.telemetry import EmulatedTelemetry
from forebay.backends.emulated.visible_devices import parse_visible_devices, visible_indices
from forebay.backends.host.port import BaseHostPort
from forebay.backends.host.queue import HostQueue
from forebay.errors import DeviceError, WrongState
from forebay.spi import DeviceProps, Heaps

__all__ = ["EmulatedDriver", "EmulatedPort"]

_SCALED = ("recommended_max_memory", "max_buffer_length")  # properties that scale with the memory
_POOLED_STREAMS = {"cuda": (32, 4), "mps": (32, 1)}  # streams per priority, priorities


class EmulatedDriver(EmulatedTelemetry):
    """Driver of `count` devices of a kind with the same profile, each with `memory` bytes, by default the profile's.

    Of these, `reserve` bytes are in use from the start, as by the context of a real device.

    For kind cuda, CUDA_VISIBLE_DEVICES selects and orders the devices until one is opened. With `guard`, host access to
    device memory outside queued work ends the process with a report of the source line. Raises ValueError if the
    profile is unknown or of another kind.
    """

    def __init__(
        self, kind: str, count: int, profile: str, memory: int | None = None, *, guard: bool = False, reserve: int = 0
    ) -> None:
        self.kind = kind
        self.guard = guard
        self._final_visible: list[int] | None = None
        self._set_profile(count, profile, memory, reserve)

    def exchange(self, profile: str, memory: int | None, reserve: int) -> None:
        """Have devices of another profile from now on. None may have been opened."""
        if self._final_visible is not None:
            raise WrongState(f"the devices of kind {self.kind} are in use")
        self._set_profile(self.machine_count(), profile, memory, reserve)

    def _set_profile(self, count: int, profile: str, memory: int | None, reserve: int) -> None:
        kind = self.kind
        self.profile: profiles.Profile = _profile(kind, profile)
        self._memory = memory or self.profile.properties["total_memory"]
        if not 0 <= reserve < self._memory:
            raise ValueError(
                f"{format_bytes(reserve)} of {format_bytes(self._memory)} cannot be reserved: nothing is left"
            )
        self._reserve = reserve
        self._uuids = [f"GPU-{self.profile.at(index)['uuid']}" for index in range(count)]
        self.set_sensors(kind, self._uuids, self._memory, self.profile.sensors)

    def visible(self) -> list[int]:
        """Return the machine's indices of the visible devices, in order."""
        if self._final_visible is not None:
            return self._final_visible
        if self.kind != "cuda":
            return list(range(self.machine_count()))
        return visible_indices(parse_visible_devices(os.environ), self.machine_count(), lambda: self._uuids)

    def count(self) -> int:
        return len(self.visible())

    def why_not(self) -> str:
        value = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "" if self.count() else f"No {self.kind.upper()} GPUs are available: CUDA_VISIBLE_DEVICES is {value!r}"

    def describe(self, index: int) -> DeviceProps:
        index = integer_of(index, "index")
        visible = self.visible()
        if index not in range(len(visible)):
            name = f"{self.kind}:{index}"
            raise DeviceError(f"invalid device ordinal: no {name}", code=INVALID_DEVICE, call="describe", device=name)
        properties = self._properties(visible[index])
        pooled, priorities = _POOLED_STREAMS.get(self.kind, (0, 1))
        return DeviceProps(
            self.kind,
            index,
            f"{properties['name']} (emulated)",
            self._memory,
            queue_visible=True,
            emulated=True,
            pooled_streams=pooled,
            stream_priorities=priorities,
            multi_processor_count=properties.get("multi_processor_count", 0),
            max_threads_per_multi_processor=properties.get("max_threads_per_multi_processor", 0),
            heaps=_heaps(properties),
            details=properties,
        )

    def _properties(self, index: int) -> Mapping[str, Any]:
        """Return the profile's properties, scaled to this driver's memory where they are proportional to it."""
        properties = self.profile.at(index)
        total = properties["total_memory"]
        scaled = {name: max(properties[name] * self._memory // total, 1) for name in _SCALED if name in properties}
        return properties if self._memory == total else {**properties, **scaled, "total_memory": self._memory}

    def can_access(self, index: int, peer: int) -> bool:
        """Return True for any other device: all memory is this machine's. A device is not its own peer."""
        return index != peer

    def open(self, index: int) -> EmulatedPort:
        visible = self.visible()
        port = EmulatedPort(self.describe(index), guard=self.guard, reserve=self._reserve)
        self._final_visible = visible
        self.sensors(visible[index]).add_port(port)
        return port


def _heaps(properties: Mapping[str, Any]) -> Heaps | None:
    """Return the heap parameters of a profile that has Metal's properties, else None."""
    if "recommended_max_memory" not in properties:
        return None
    recommended, longest = (properties[name] for name in _SCALED)
    return Heaps(recommended, longest, bool(properties["unified_memory"]), properties["buffer_alignment"])


def _profile(kind: str, name: str) -> profiles.Profile:
    """Return a profile of the kind. Reads the other profiles only for an error."""
    try:
        found = profiles.load(name)
    except ValueError:
        _check_kind(kind)
        raise
    if found.kind != kind:
        _check_kind(kind)
        names = ", ".join(profiles.names(kind))
        raise ValueError(f"profile {found.name!r} is of kind {found.kind}, not {kind}; profiles of {kind}: {names}")
    return found


def _check_kind(kind: str) -> None:
    """Raise ValueError unless there are profiles of the kind."""
    kinds = sorted({profiles.load(each).kind for each in profiles.names()})
    if kind not in kinds:
        raise ValueError(
            f"{kind!r} is not a kind of device that can be emulated; there are profiles for {', '.join(kinds)}"
            f"{did_you_mean(kind, kinds)}"
        )


class EmulatedPort(BaseHostPort):
    """An open emulated device. As with real ones, a forked child cannot open it again; its copy stays guarded."""

    _handles = itertools.count(0x7E00_0000_0080, 0x80)  # like those of real drivers, which are addresses

    def __init__(self, props: DeviceProps, *, guard: bool = False, reserve: int = 0) -> None:
        super().__init__(props, charged=False)
        self._withheld = reserve
        self._guarded = guard  # Note [Access guard]
        if guard:
            guard_reporter.begin()

    def on_mapped(self, address: int, nbytes: int, segment: int) -> None:
        budget.on_mapped(self, address, nbytes)
        if self._guarded:
            guard(address, nbytes, segment, self.name)

    def on_unmapping(self, address: int, nbytes: int, *, part: bool = False) -> None:
        if self._guarded:
            unguard(address, nbytes)
        budget.on_unmapping(address, nbytes, part=part)

    @contextmanager
    def host_accessible(self, address: int, nbytes: int) -> Iterator[None]:
        if not self._guarded:
            yield
            return
        unguard(address, nbytes)
        try:
            commit_pages(address, nbytes)
            yield
        finally:
            guard(address, nbytes, address, self.name)

    def mappings(self) -> list[tuple[int, int]]:
        """Return address and size of each mapping; all touched memory lies in one of them."""
        return [*self.segments(), *self._spaces.mappings()]

    def close(self) -> None:
        super().close()
        if self._guarded and not self.forked() and not self.mappings():
            self._guarded = False
            guard_reporter.end()

    def _new_queue(self, handle: int, priority: int) -> HostQueue:
        return EmulatedQueue(self, handle, priority, guarded=self._guarded)

    def process_memory(self) -> Mapping[int, int]:
        """Return this process only."""
        return {os.getpid(): self.reserved + self._withheld}

    def _new_handle(self) -> int:
        """Return an even handle, unique across devices, so that no stream id equals a handle. The first queue has 0."""
        if not self._queues_made:
            return 0
        return next(self._handles)
