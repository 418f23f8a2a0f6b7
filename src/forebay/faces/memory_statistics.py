"""What a kind's allocators count, and their limits: PyTorch's names, and its answers before the first use.

Asking opens nothing: before the first use of the kind there is nothing to tell, and a device that nobody opened has
nothing allocated.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from forebay.errors import ForebayError, Unsupported
from forebay.faces.kind import Kind
from forebay.runtime.allocator import pluggable_allocator, statistics
from forebay.runtime.allocator.summary import memory_summary
from forebay.runtime.devices import open_device
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.peak import Peak
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator
from forebay.runtime.settings import process_settings

__all__ = ["MemoryStatistics", "flatten", "opened_or_none", "refuse_plugged"]


def refuse_plugged(kind: Kind, call: str) -> None:
    """Unsupported, with PyTorch's words, where a plugged allocator serves the kind: it counts nothing."""
    if pluggable_allocator.current(kind.name) is not None:
        raise Unsupported(
            f"{kind.word}PluggableAllocator does not yet support {call}. "
            "If you need it, please file an issue describing your use case."
        )


def opened_or_none(kind: Kind, index: int, call: str) -> OpenDevice | None:
    """The device, if it is open. Raises ForebayError for an index that is none, as before the kind's first use."""
    if kind.initialised and index >= 0:
        found = open_device.opened_if(kind.named(index))
        if found is not None or index < kind.count():
            return found
    raise ForebayError(f"{call} {index}: did you call init?")


def flatten(result: list[tuple[str, Any]], prefix: str, obj: Any, format_key: Callable[[Any], str]) -> None:
    """Add nested dicts to the list, as keys joined by dots. (`torch.cuda.memory._recurse_add_to_result`)"""
    if not isinstance(obj, dict):
        result.append((prefix, obj))
        return
    for key, value in obj.items():
        flatten(result, f"{prefix}.{format_key(key)}" if prefix else format_key(key), value, format_key)


class MemoryStatistics:
    """Of one kind. `device` is an index, a device, its name, or None for the current one; ForebayError for none."""

    def __init__(self, kind: Kind) -> None:
        self._kind, self._name = kind, kind.name

    def counted(self, device: Any) -> OpenDevice | None:
        """The device that a question is about; None where it is not open, or the kind was not used."""
        if device is None:
            found = local.here.opened
            if found is not None and found.device.kind == self._name and not (found.gone or found.plugged):
                return found  # what follows takes microseconds
        if not self._kind.initialised:
            return None
        index = self._kind.index(device, optional=True)
        refuse_plugged(self._kind, "getDeviceStats")
        return opened_or_none(self._kind, index, "Invalid device argument")

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """Everything the allocator counts, by flat keys ("allocated_bytes.all.current") in order.

        Nothing at all before the kind's first use.
        """
        if not self._kind.initialised:
            return OrderedDict()
        opened = self.counted(device)
        if opened is None:
            return OrderedDict(statistics.nothing(process_settings.current()))
        return OrderedDict(statistics.flat(opened.allocator))

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        """The same as dicts of dicts, `["allocated_bytes"]["all"]["current"]`."""
        return statistics.nested(self.memory_stats(device))

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes in blocks handed out now; 0 before the kind's first use."""
        opened = self.counted(device)
        return 0 if opened is None else opened.allocator.current(statistics.ALLOCATED_BYTES)

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were in blocks handed out, since the start or the last `reset_peak_memory_stats`."""
        opened = self.counted(device)
        return 0 if opened is None else opened.allocator.peak(statistics.ALLOCATED_BYTES)

    def memory_reserved(self, device: Any = None) -> int:
        """Bytes in segments taken from the device now, handed out or not; 0 before the kind's first use."""
        opened = self.counted(device)
        return 0 if opened is None else opened.allocator.current(statistics.RESERVED_BYTES)

    def max_memory_reserved(self, device: Any = None) -> int:
        """The most bytes that were in segments, since the start or the last `reset_peak_memory_stats`."""
        opened = self.counted(device)
        return 0 if opened is None else opened.allocator.peak(statistics.RESERVED_BYTES)

    def memory_cached(self, device: Any = None) -> int:
        """`memory_reserved` under its old name, with a warning."""
        self._warn_of_new_name("memory_cached", "memory_reserved")
        return self.memory_reserved(device)

    def max_memory_cached(self, device: Any = None) -> int:
        """`max_memory_reserved` under its old name, with a warning."""
        self._warn_of_new_name("max_memory_cached", "max_memory_reserved")
        return self.max_memory_reserved(device)

    def _warn_of_new_name(self, old: str, new: str) -> None:
        face = f"forebay.{self._name}"
        warnings.warn(f"`{face}.{old}` has been renamed to `{face}.{new}`", FutureWarning, stacklevel=3)

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """The numbers as a table for people; `abbreviated`, without small and large pools.

        Before the kind's first use a table of zeros.
        """
        kind = self._kind
        index = kind.index(device, optional=True) if kind.initialised or device is not None else 0
        return memory_summary(self.memory_stats(index), index, abbreviated=abbreviated)

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Every peak becomes what is there now. Asking for the current device initialises the kind."""
        opened = self._for_reset(device, "reset_peak_memory_stats", "resetPeakStats")
        if opened is not None:
            opened.allocator.reset_peaks()

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """All sums ("allocated", "freed") and counters become 0. Asking for the current device initialises the kind."""
        opened = self._for_reset(device, "reset_accumulated_memory_stats", "resetAccumulatedStats")
        if opened is not None:
            opened.allocator.reset_accumulated()

    def _for_reset(self, device: Any, name: str, call: str) -> OpenDevice | None:
        if device is None and not self._kind.count():
            raise ForebayError(f"invalid argument to {name}")
        index = self._kind.index(device, optional=True)
        refuse_plugged(self._kind, call)
        return opened_or_none(self._kind, index, "Invalid device argument")

    def reset_max_memory_allocated(self, device: Any = None) -> None:
        """`reset_peak_memory_stats`, with a warning that it resets all peaks."""
        self._warn_of_all_peaks("reset_max_memory_allocated")
        self.reset_peak_memory_stats(device)

    def reset_max_memory_cached(self, device: Any = None) -> None:
        """`reset_peak_memory_stats`, with a warning that it resets all peaks."""
        self._warn_of_all_peaks("reset_max_memory_cached")
        self.reset_peak_memory_stats(device)

    def _warn_of_all_peaks(self, name: str) -> None:
        face = f"forebay.{self._name}"
        warnings.warn(
            f"{face}.{name} now calls {face}.reset_peak_memory_stats, which resets /all/ peak memory stats.",
            FutureWarning,
            stacklevel=3,
        )

    def peak(self, device: Any = None) -> Peak:
        """Measure the most memory that a part of the program has, as `forebay.memory.peak`.

        Initialises the kind and opens the device.
        """
        return Peak(self._kind.opened(device))

    # Pinned host memory, which the kind's devices share.

    def host_memory_stats_as_nested_dict(self) -> dict[str, Any]:
        """What is counted of pinned host memory, `["active_bytes"]["current"]`; nothing before the kind's first use."""
        if not self._kind.initialised:
            return {}
        pinned = open_device.pinned_if(self._name)
        return PinnedAllocator.nothing_counted() if pinned is None else pinned.stats_as_nested_dict()

    def host_memory_stats(self) -> dict[str, Any]:
        """The same by flat keys, "active_bytes.current", in order. Sizes are bytes, times µs."""
        rows: list[tuple[str, Any]] = []
        flatten(rows, "", self.host_memory_stats_as_nested_dict(), str)
        return OrderedDict(sorted(rows))

    def reset_peak_host_memory_stats(self) -> None:
        """Every peak of pinned host memory becomes what is there now."""
        if (pinned := open_device.pinned_if(self._name)) is not None:
            pinned.reset_peaks()

    def reset_accumulated_host_memory_stats(self) -> None:
        """All sums of pinned host memory become 0."""
        if (pinned := open_device.pinned_if(self._name)) is not None:
            pinned.reset_accumulated()

    # What there is, and how much of it may be had.

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Bytes free on the device, and bytes in all. Opens the device; DeviceError where there is none."""
        index = self._kind.index(device, optional=True)
        return self._kind.opened(index if index >= 0 else None).port.memory_info()

    def empty_cache(self) -> None:
        """Give idle memory back to all devices of the kind, once their work is done. Nothing before the first use.

        Of MPS and MTIA ForebayError where there is no device.
        """
        allocators = open_device.opened_of(self._name).native
        for allocator in allocators:
            allocator.empty()
        if allocators:
            return
        if not self._kind.initialised:
            self._kind.hook("emptyCache")
        elif (serving := pluggable_allocator.current(self._name)) is not None:
            serving.on_reset()

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        """Reserve at most this share of the device's memory, 0.0 to 1.0; 1.0 is without a limit. Opens the device.

        Initialises the kind first; then TypeError for what is no float, ValueError outside of 0 to 1.
        """
        kind = self._kind
        kind.initialisation.ensure()
        index = kind.current_index() if device is None else kind.index(device)
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if fraction < 0 or fraction > 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        if fraction != fraction:  # noqa: PLR0124 -- it is no number
            raise ForebayError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        if (serving := pluggable_allocator.current(kind.name)) is not None:
            serving.on_fraction(fraction, index)
            return
        opened_or_none(kind, index, "Allocator not initialized for device")
        kind.opened(index).allocator.set_memory_fraction(fraction)

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        """The share of the device's memory that may be reserved, 1.0 without a limit. Initialises the kind."""
        kind = self._kind
        kind.initialisation.ensure()
        index = kind.current_index() if device is None else kind.index(device)
        refuse_plugged(kind, "getMemoryFraction")
        opened = opened_or_none(kind, index, "Allocator not initialized for device")
        if opened is None:
            return min(1.0, process_settings.current().per_process_memory_fraction)
        return opened.allocator.memory_fraction()

    def set_allocator_settings(self, env: str) -> None:
        """New settings for the allocators of all kinds, with a warning. ValueError, with PyTorch's words."""
        name = f"forebay.{self._name}._set_allocator_settings"
        warnings.warn(
            f"{name} is deprecated. Use forebay.memory.set_allocator_settings instead.", FutureWarning, stacklevel=2
        )
        process_settings.apply(env)
