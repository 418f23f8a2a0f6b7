"""Allocator statistics and limits of one device kind, under PyTorch's names.

Statistics open no device: before the kind's first use they are empty or 0, as are those of a device that is not open.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from forebay._base.device_spec import DeviceLike
from forebay.errors import ForebayError, Unsupported
from forebay.names.kind import DeviceKind
from forebay.names.pybind_arguments import STR, Signature
from forebay.runtime.allocator import pluggable_allocator, statistics
from forebay.runtime.allocator.displayed import OrderedStatistics
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.allocator.summary import memory_summary
from forebay.runtime.devices import open_device
from forebay.runtime.devices.current import current_index
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.peak import Peak
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator
from forebay.runtime.settings import process_settings

__all__ = ["MemoryStatistics", "find_open_device", "flatten", "require_native_allocator"]


def require_native_allocator(kind: DeviceKind, call: str) -> None:
    """Raise Unsupported, with PyTorch's text, if the kind uses a pluggable allocator, which has no statistics."""
    if pluggable_allocator.current(kind.name) is not None:
        raise Unsupported(
            f"{kind.display_name}PluggableAllocator does not yet support {call}. "
            "If you need it, please file an issue describing your use case."
        )


def find_open_device(kind: DeviceKind, index: int, message: str) -> OpenDevice | None:
    """Return the device if it is open, else None. Raises ForebayError if it does not exist or the kind is unused."""
    if kind.initialised and index >= 0:
        found = open_device.get_open_device(kind.device_at(index))
        if found is not None or index < kind.count():
            return found
    raise ForebayError(f"{message} {index}: did you call init?")


def flatten(result: list[tuple[str, Any]], prefix: str, obj: Any, format_key: Callable[[Any], str]) -> None:
    """Append the leaves of nested dicts to the list, with keys joined by dots.

    (`torch.cuda.memory._recurse_add_to_result`)
    """
    if not isinstance(obj, dict):
        result.append((prefix, obj))
        return
    for key, value in obj.items():
        flatten(result, f"{prefix}.{format_key(key)}" if prefix else format_key(key), value, format_key)


class MemoryStatistics:
    """Memory statistics and limits of one kind."""

    def __init__(self, kind: DeviceKind) -> None:
        self._kind, self._name = kind, kind.name

    def find_device(self, device: Any) -> OpenDevice | None:
        """Return the device whose statistics are requested; None if it is not open or the kind is not in use."""
        if (found := self._kind.known(device)) is not None and not found.pluggable:
            return found
        if not self._kind.initialised:
            return None
        index = self._kind.index(device, optional=True)
        self._kind.checked_index(index, "memory_allocated")
        require_native_allocator(self._kind, "getDeviceStats")
        return find_open_device(self._kind, index, "Invalid device argument")

    def memory_stats(self, device: DeviceLike | None = None) -> dict[str, Any]:
        """Return all statistics of the allocator under flat keys.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Returns
        -------
        dict of str to int
            Sorted by key, such as "allocated_bytes.all.current"; empty before the kind's first use.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        opened = self.find_device(device)
        if opened is None:
            if not self._kind.initialised:
                return OrderedStatistics()
            place = self._kind.device_at(self._kind.index(device, optional=True))
            return OrderedStatistics(
                statistics.zero_stats(process_settings.at_first_use(self._name), open_device.emptied(place))
            )
        return OrderedStatistics(statistics.flat_stats(opened.allocator))

    # Written by tools/write_names.py from tools/names/memory.toml: edit the table, not these lines.

    def memory_allocated(self, device: DeviceLike | None = None) -> int:
        """Return the bytes in live blocks, rounded up to the block sizes; 0 before the kind's first use.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        opened = self.find_device(device)
        return 0 if opened is None else opened.allocator.current(ALLOCATED_BYTES)

    def max_memory_allocated(self, device: DeviceLike | None = None) -> int:
        """Return the peak of `memory_allocated` since the start or the last `reset_peak_memory_stats`.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Returns
        -------
        int
            Bytes; 0 before the kind's first use.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        opened = self.find_device(device)
        return 0 if opened is None else opened.allocator.peak(ALLOCATED_BYTES)

    def memory_reserved(self, device: DeviceLike | None = None) -> int:
        """Return the bytes of segments reserved from the device, used or cached; 0 before the kind's first use.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        opened = self.find_device(device)
        return 0 if opened is None else opened.allocator.current(RESERVED_BYTES)

    def max_memory_reserved(self, device: DeviceLike | None = None) -> int:
        """Return the peak of `memory_reserved` since the start or the last `reset_peak_memory_stats`.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Returns
        -------
        int
            Bytes; 0 before the kind's first use.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        opened = self.find_device(device)
        return 0 if opened is None else opened.allocator.peak(RESERVED_BYTES)

    def memory_stats_as_nested_dict(self, device: DeviceLike | None = None) -> dict[str, Any]:
        """Return all statistics of the allocator as nested dicts.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Returns
        -------
        dict
            As `memory_stats`, with keys split at the dots: `["allocated_bytes"]["all"]["current"]`.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        return statistics.nested_stats(self.memory_stats(device))

    def memory_summary(self, device: DeviceLike | None = None, abbreviated: bool = False) -> str:
        """Return the statistics as a printable table; all zeros before the kind's first use.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.
        abbreviated : bool, default False
            Leave out the rows of the small and the large pool.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        index = self._kind.explicit_index(device)
        if index is None:
            index = current_index(self._name)
        return memory_summary(self.memory_stats(index), index, abbreviated=abbreviated)

    def reset_peak_memory_stats(self, device: DeviceLike | None = None) -> None:
        """Set every peak to the current value.

        Initialises the kind if `device` is None.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        opened = self._find_device_to_reset(device, "reset_peak_memory_stats", "resetPeakStats")
        if opened is not None:
            opened.allocator.reset_peaks()

    def peak(self, device: DeviceLike | None = None) -> Peak:
        """Return a context manager that measures the peak memory of a code section: see `forebay.memory.peak`.

        Initialises the kind and opens the device.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        DeviceError
            If the device does not exist.
        Unsupported
            If the device uses a pluggable allocator.
        """
        return Peak(self._kind.open_device(device))

    def host_memory_stats(self) -> dict[str, Any]:
        """Return the statistics of pinned host memory under flat keys.

        Returns
        -------
        dict of str to int
            Sorted by key, such as "active_bytes.current"; sizes in bytes, times in µs; empty before the kind's first
            use.
        """
        rows: list[tuple[str, Any]] = []
        flatten(rows, "", self.host_memory_stats_as_nested_dict(), str)
        return OrderedStatistics(sorted(rows))

    def host_memory_stats_as_nested_dict(self) -> dict[str, Any]:
        """Return the statistics of pinned host memory as nested dicts.

        Returns
        -------
        dict
            Such as `["active_bytes"]["current"]`; sizes in bytes, times in µs; empty before the kind's first use.
        """
        if not self._kind.initialised:
            return {}
        pinned = open_device.get_pinned_allocator(self._name)
        return PinnedAllocator.empty_stats() if pinned is None else pinned.stats_as_nested_dict()

    def mem_get_info(self, device: DeviceLike | None = None) -> tuple[int, int]:
        """Return the free and the total bytes of a device.

        Opens the device.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        DeviceError
            If the device does not exist.
        """
        if (opened := self._kind.known(device)) is None:
            index = self._kind.index(device, optional=True)
            opened = self._kind.open_device(None if index == -1 else index)
        return opened.port.memory_info()

    def memory_cached(self, device: DeviceLike | None = None) -> int:
        """Return the bytes of `memory_reserved(device)`; the deprecated name.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Warns
        -----
        FutureWarning
            Always.
        """
        self._warn_renamed("memory_cached", "memory_reserved")
        return self.memory_reserved(device)

    def max_memory_cached(self, device: DeviceLike | None = None) -> int:
        """Return the bytes of `max_memory_reserved(device)`; the deprecated name.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Warns
        -----
        FutureWarning
            Always.
        """
        self._warn_renamed("max_memory_cached", "max_memory_reserved")
        return self.max_memory_reserved(device)

    def reset_max_memory_allocated(self, device: DeviceLike | None = None) -> None:
        """Call `reset_peak_memory_stats(device)`; the deprecated name.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Warns
        -----
        FutureWarning
            Always: all peaks are reset, not only this one.
        """
        self._warn_all_peaks("reset_max_memory_allocated")
        self.reset_peak_memory_stats(device)

    def reset_max_memory_cached(self, device: DeviceLike | None = None) -> None:
        """Call `reset_peak_memory_stats(device)`; the deprecated name.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Warns
        -----
        FutureWarning
            Always: all peaks are reset, not only this one.
        """
        self._warn_all_peaks("reset_max_memory_cached")
        self.reset_peak_memory_stats(device)

    # End of the written lines.

    def _warn_renamed(self, old: str, new: str) -> None:
        module = f"forebay.{self._name}"
        warnings.warn(f"`{module}.{old}` has been renamed to `{module}.{new}`", FutureWarning, stacklevel=3)

    def reset_accumulated_memory_stats(self, device: DeviceLike | None = None) -> None:
        """Set all totals ("allocated", "freed") and event counters to 0.

        Initialises the kind if `device` is None.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        opened = self._find_device_to_reset(device, "reset_accumulated_memory_stats", "resetAccumulatedStats")
        if opened is not None:
            opened.allocator.reset_accumulated()
        else:
            open_device.emptied(self._kind.device_at(self._kind.index(device, optional=True)), reset=True)

    def _find_device_to_reset(self, device: Any, name: str, call: str) -> OpenDevice | None:
        if (found := self._kind.known(device)) is not None and not found.pluggable:
            return found
        if not self._kind.count() and self._kind.explicit_index(device) is None:
            raise ForebayError(f"invalid argument to {name}")
        index = self._kind.index(device, optional=True)
        self._kind.checked_index(index, name)
        if self._kind.initialisation.bad_fork:
            return None  # as PyTorch, which resets a copy of the parent's statistics
        require_native_allocator(self._kind, call)
        return find_open_device(self._kind, index, "Invalid device argument")

    def _warn_all_peaks(self, name: str) -> None:
        module = f"forebay.{self._name}"
        warnings.warn(
            f"{module}.{name} now calls {module}.reset_peak_memory_stats, which resets /all/ peak memory stats.",
            FutureWarning,
            stacklevel=3,
        )

    # Pinned host memory, which all devices of the kind share

    def reset_peak_host_memory_stats(self) -> None:
        """Set every peak of pinned host memory to the current value."""
        if (pinned := open_device.get_pinned_allocator(self._name)) is not None:
            pinned.reset_peaks()

    def reset_accumulated_host_memory_stats(self) -> None:
        """Set all totals of pinned host memory to 0."""
        if (pinned := open_device.get_pinned_allocator(self._name)) is not None:
            pinned.reset_accumulated()

    # Capacity and limits

    def empty_cache(self) -> None:
        """Release the cached memory of all devices of the kind.

        Waits for work that still uses the memory. Does nothing before the kind's first use.

        Raises
        ------
        ForebayError
            For MPS and MTIA, if there is no device.
        """
        opened = open_device.open_devices(self._name)
        for allocator in opened.native:
            allocator.empty()
        if self._kind.initialised and len(opened.devices) < (count := self._kind.count()):
            open_device.count_emptied(self._name, count)
        if opened.native:
            return
        if not self._kind.initialised:
            self._kind.require_backend("emptyCache")
        elif (pluggable := pluggable_allocator.current(self._name)) is not None:
            pluggable.on_reset()

    def set_per_process_memory_fraction(self, fraction: float, device: DeviceLike | None = None) -> None:
        """Limit reserved memory to a fraction of the device's memory.

        Initialises the kind and opens the device.

        Parameters
        ----------
        fraction : float
            0.0 to 1.0; 1.0 removes the limit.
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        TypeError
            If `fraction` is not a float.
        ValueError
            If `fraction` is outside 0.0 to 1.0.
        ForebayError
            If `fraction` is NaN or the device does not exist.
        """
        kind = self._kind
        kind.initialisation.ensure()
        index = kind.current_index() if device is None else kind.index(device)
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if fraction < 0 or fraction > 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        if fraction != fraction:  # noqa: PLR0124 -- NaN
            raise ForebayError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        if (pluggable := pluggable_allocator.current(kind.name)) is not None:
            pluggable.on_fraction(fraction, index)
            return
        find_open_device(kind, index, "Allocator not initialized for device")
        kind.open_device(index).allocator.set_memory_fraction(fraction)

    def get_per_process_memory_fraction(self, device: DeviceLike | None = None) -> float:
        """Return the fraction of the device's memory that may be reserved: 0.0 to 1.0, which is no limit.

        Initialises the kind.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        ForebayError
            If the device does not exist.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        kind = self._kind
        if (known := kind.known_by_index(device)) is not None and not known.pluggable:
            return known.allocator.memory_fraction()
        kind.initialisation.ensure()
        index = kind.current_index() if device is None else kind.index(device)
        require_native_allocator(kind, "getMemoryFraction")
        opened = find_open_device(kind, index, "Allocator not initialized for device")
        if opened is None:
            fraction, total = (
                process_settings.at_first_use(kind.name).per_process_memory_fraction,
                kind.describe(index).total_bytes,
            )
            return int(fraction * total + 0.5) / total
        return opened.allocator.memory_fraction()

    def set_allocator_settings(self, env: str) -> None:
        """Change the settings of the allocators of all kinds; the deprecated name.

        Parameters
        ----------
        env : str
            Settings in the syntax of PYTORCH_CUDA_ALLOC_CONF.

        Raises
        ------
        TypeError
            If `env` is not a str.
        ValueError
            If a setting is invalid.

        Warns
        -----
        FutureWarning
            Always: use `forebay.memory.set_allocator_settings`.
        """
        name = f"forebay.{self._name}._set_allocator_settings"
        warnings.warn(
            f"{name} is deprecated. Use forebay.memory.set_allocator_settings instead.", FutureWarning, stacklevel=2
        )
        [settings] = Signature("_accelerator_setAllocatorSettings", STR).convert(env)
        process_settings.apply(settings)
