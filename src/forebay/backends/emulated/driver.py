"""Devices of another kind that this machine stands in for: its memory, its threads, and a profile's properties.

Their memory is the machine's, so a page costs nothing until it is touched, and a profile may have more of it than there
is. The host may not read it, as it could not read a GPU's; what is queued may.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from forebay import profiles
from forebay.backends.common.arguments import integer_of
from forebay.backends.common.cuda_errors import INVALID_DEVICE
from forebay.backends.common.mmap import open_pages
from forebay.backends.emulated.memory_budget import guard, room, unguard, watch
from forebay.backends.emulated.queue import EmulatedQueue
from forebay.backends.emulated.telemetry import EmulatedTelemetry
from forebay.backends.emulated.visible_devices import of_environment, visible_indices
from forebay.backends.host.port import MachinePort
from forebay.backends.host.queue import HostQueue
from forebay.errors import DeviceError
from forebay.spi import DeviceProps, Heaps

__all__ = ["EmulatedDriver", "EmulatedPort"]

_SHARES = ("recommended_max_memory", "max_buffer_length")
_POOLED_STREAMS = {"cuda": (32, 4), "mps": (32, 1)}  # of each priority, and how many of those


class EmulatedDriver(EmulatedTelemetry):
    """`count` devices of a kind, all with one profile; `memory` bytes each, or as many as the profile says.

    Of kind cuda, CUDA_VISIBLE_DEVICES says which of them there are and in which order, until one is opened. With
    `guard` the process ends where the host touches their memory outside queued work, and says which line did it. Raises
    ValueError for an unknown profile, and for one of another kind.
    """

    def __init__(self, kind: str, count: int, profile: str, memory: int | None = None, *, guard: bool = False) -> None:
        self.kind = kind
        self.profile = _profile(kind, profile)
        self._memory = memory or self.profile.properties["total_memory"]
        self.guard = guard
        self._settled: list[int] | None = None
        self._uuids = [f"GPU-{self.profile.at(index)['uuid']}" for index in range(count)]
        super().__init__(kind, self._uuids, self._memory, self.profile.sensors)

    def visible(self) -> list[int]:
        """Which of the emulated machine's devices the process sees, in its order."""
        if self._settled is not None:
            return self._settled
        if self.kind != "cuda":
            return list(range(self.machine_count()))
        return visible_indices(of_environment(os.environ), self.machine_count(), lambda: self._uuids)

    def count(self) -> int:
        return len(self.visible())

    def why_not(self) -> str:
        said = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "" if self.count() else f"No {self.kind.upper()} GPUs are available: CUDA_VISIBLE_DEVICES is {said!r}"

    def describe(self, index: int) -> DeviceProps:
        """What the device is; DeviceError where there is none."""
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
        """With another memory, what is a share of it is the same share."""
        properties = self.profile.at(index)
        total = properties["total_memory"]
        shares = {name: max(properties[name] * self._memory // total, 1) for name in _SHARES if name in properties}
        return properties if self._memory == total else {**properties, **shares, "total_memory": self._memory}

    def can_access(self, index: int, peer: int) -> bool:
        """All memory is one machine's; to reach its own, a device needs nobody's leave."""
        return index != peer

    def open(self, index: int) -> EmulatedPort:
        settled = self.visible()
        port = EmulatedPort(self.describe(index), guard=self.guard)
        self._settled = settled
        self.sensors(settled[index]).watch(port)
        return port


def _heaps(properties: Mapping[str, Any]) -> Heaps | None:
    """Of devices of which a share of the memory is recommended, as Metal does."""
    if "recommended_max_memory" not in properties:
        return None
    recommended, longest = (properties[name] for name in _SHARES)
    return Heaps(recommended, longest, bool(properties["unified_memory"]), properties["buffer_alignment"])


def _profile(kind: str, name: str) -> profiles.Profile:
    kinds = sorted({profiles.load(each).kind for each in profiles.names()})
    if kind not in kinds:
        raise ValueError(
            f"{kind!r} is no kind of device that can be emulated: there are profiles of {', '.join(kinds)}"
        )
    found = profiles.load(name)
    if found.kind != kind:
        wanted = ", ".join(profiles.names(kind))
        raise ValueError(f"profile {found.name!r} is of kind {found.kind}, not {kind}: {wanted}")
    return found


class EmulatedPort(MachinePort):
    """One emulated device. As with the real ones, a forked child cannot open it again; its copy stays guarded there."""

    _handles = itertools.count(0x7E00_0000_0080, 0x80)  # they look like the drivers': addresses of something

    def __init__(self, props: DeviceProps, *, guard: bool = False) -> None:
        super().__init__(props, promised=False)
        self._guarded = guard
        self._watched = guard
        if guard:
            watch.begin()

    def came(self, address: int, nbytes: int, segment: int) -> None:
        room.came(self, address, nbytes)
        if self._guarded:
            guard(address, nbytes, segment, self.name)

    def going(self, address: int, nbytes: int, *, part: bool = False) -> None:
        if self._guarded:
            unguard(address, nbytes)
        room.going(address, nbytes, part=part)

    @contextmanager
    def laid_open(self, address: int, nbytes: int) -> Iterator[None]:
        if not self._guarded:
            yield
            return
        unguard(address, nbytes)
        try:
            open_pages(address, nbytes)
            yield
        finally:
            guard(address, nbytes, address, self.name)

    def mappings(self) -> list[tuple[int, int]]:
        """All memory that was touched lies in one of these, addresses and sizes."""
        return [*tuple(self._segments.items()), *self._spaces.mappings()]

    def close(self) -> None:
        super().close()
        if self._watched and not self.forked() and not self.mappings():
            self._watched = False
            watch.end()

    def _new_queue(self, handle: int, priority: int) -> HostQueue:
        return EmulatedQueue(self, handle, priority, guarded=self._guarded)

    def occupants(self) -> Mapping[int, int]:
        """Nobody but this process."""
        return {os.getpid(): self.reserved}

    def _new_handle(self) -> int:
        """Unlike those of other devices, and even, so that a stream's id is never mistaken for one."""
        if not self._queues_made:
            return 0
        return next(self._handles)
