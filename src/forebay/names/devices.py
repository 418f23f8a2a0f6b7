"""Implementations of PyTorch's device functions over one device kind; each module binds its names to these methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay._base.device_spec import DeviceLike
from forebay.errors import ForebayError
from forebay.names._device_context import DeviceContext
from forebay.names.kind import DeviceKind
from forebay.runtime.streams import sync_debug

__all__ = ["DeviceContext", "DeviceFunctions", "DeviceGuard"]


class DeviceGuard(DeviceContext):
    """Context manager like `DeviceContext` for a known index.

    Parameters
    ----------
    index : int
        The device index; a negative one changes nothing.
    """

    def __init__(self, index: int) -> None:
        self.idx: int | None = index


class DeviceFunctions:
    """Device functions of one kind."""

    def __init__(self, kind: DeviceKind) -> None:
        self._kind = kind

    # Written by tools/write_names.py from tools/names/devices.toml: edit the table, not these lines.

    def init(self) -> None:
        """Initialise the kind and run the queued calls.

        The first use of a device does the same.

        Raises
        ------
        RuntimeError
            If there is no device, or in a process forked from one that had initialised the kind.
        """
        self._kind.initialisation.ensure()

    def is_initialized(self) -> bool:
        """Return True if this process has initialised the kind."""
        return self._kind.initialised

    def is_in_bad_fork(self) -> bool:
        """Return True if this process was forked from one that had initialised the kind."""
        return self._kind.initialisation.bad_fork

    def is_available(self) -> bool:
        """Return True if there is at least one device, emulated devices included.

        Does not initialise the kind. Never raises.
        """
        return self._kind.count() > 0

    def device_count(self) -> int:
        """Return the number of devices; 0 without a backend.

        Does not initialise the kind. Never raises.
        """
        return self._kind.count()

    def exchange_device(self, device: int) -> int:
        """Make a device current and return the index of the previous one; -1 if `device` is negative.

        Parameters
        ----------
        device : int
            The device index; a negative one changes nothing.

        Raises
        ------
        ForebayError
            If `device` is not an int.
        DeviceError
            If the device does not exist.
        """
        return self._kind.exchange(device)

    def lazy_call(self, callable: Callable[[], Any], **kwargs: Any) -> Any:  # noqa: A002 -- PyTorch's name
        """Call a function now if the kind is initialised, else queue the call until its first use.

        Parameters
        ----------
        callable : Callable
            The function, called without arguments.
        **kwargs : Any
            `seed_all=True` marks a call that seeds all devices, `seed=True` one that seeds one device: only the last
            queued call of each is made.

        Returns
        -------
        Any
            The function's result, or None if the call is queued.
        """
        seeds = "all" if kwargs.get("seed_all", False) else "one" if kwargs.get("seed", False) else ""
        return self._kind.initialisation.call(callable, seeds=seeds)

    def get_sync_debug_mode(self) -> int:
        """Return the mode that `set_sync_debug_mode` set: 0 ("default"), 1 ("warn") or 2 ("error").

        Initialises the kind.
        """
        self._kind.initialisation.ensure()
        return sync_debug.mode

    # End of the written lines.

    def set_device(self, device: DeviceLike) -> None:
        """Make a device this thread's current one.

        Initialises the kind but does not open a device.

        Parameters
        ----------
        device : device or str or int
            The device; a negative index changes nothing.

        Raises
        ------
        ValueError
            If `device` is of another kind or has no index.
        DeviceError
            If the device does not exist.
        """
        index = self._kind.index(device)
        if index.__class__ is bool:
            raise ForebayError("invalid argument to setDevice")
        if index >= 0:
            self._kind.exchange(index)

    def synchronize(self, device: DeviceLike | None = None) -> None:
        """Wait until all work on all streams of a device has completed.

        Initialises the kind but does not open a device.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        DeviceError
            If queued work failed and the failure was not reported yet, or if the device does not exist.
        ValueError
            If `device` is of another kind.
        """
        kind = self._kind
        if (opened := kind.known(device)) is not None:
            opened.synchronize()
            return
        if not kind.has_hooks:
            kind.initialisation.ensure()
        index = kind.index(device, optional=True)
        if index >= 0:
            kind.require_backend("maybeExchangeDevice")
        kind.initialisation.ensure()
        kind.checked_index(index, "exchangeDevice")
        opened = kind.get_open_device(kind.device(None if index < 0 else index))
        if opened is not None:  # a device that is not open has no work
            opened.synchronize()

    def set_sync_debug_mode(self, debug_mode: int | str) -> None:
        """Set how calls that wait for the device are reported.

        Initialises the kind.

        Parameters
        ----------
        debug_mode : int or str
            "default" (0) reports nothing, "warn" (1) issues a warning, "error" (2) raises RuntimeError.

        Raises
        ------
        ForebayError
            If `debug_mode` is invalid.

        Warns
        -----
        ForebayWarning
            At the first call in the process: the mode does not detect every wait.
        """
        self._kind.initialisation.ensure()
        if isinstance(debug_mode, str):
            if debug_mode not in _MODES:
                raise ForebayError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
            debug_mode = _MODES.index(debug_mode)
        sync_debug.warn_once()
        if not isinstance(debug_mode, int) or isinstance(debug_mode, bool):
            raise ForebayError("invalid argument to set_sync_debug_mode")
        if debug_mode not in range(len(_MODES)):
            raise ForebayError("invalid value of debug_mode, expected one of 0,1,2")
        sync_debug.set_mode(debug_mode)


_MODES = ("default", "warn", "error")
