"""The current device of a kind, and what its devices are."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

from forebay.errors import ForebayError
from forebay.faces.kind import Kind
from forebay.runtime.devices.current import current_device, local
from forebay.runtime.streams import sync_debug

__all__ = ["DeviceContext", "DeviceGuard", "Devices"]


class DeviceContext:
    """The device is current inside, the one before it afterwards; None and a negative index change nothing."""

    kind: ClassVar[Kind]
    __slots__ = ("_before", "idx", "prev_idx")

    def __init__(self, device: Any) -> None:
        self.idx = device if device.__class__ is int else self.kind.index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        before = self._before = local.here.device  # perhaps of another kind
        if before is not None and before.index == self.idx and before.kind == self.kind.name:
            self.prev_idx = self.idx  # it is current already
        else:
            if before is None:  # what was current by itself is so again
                self._before = current_device()
            self.prev_idx = self.kind.exchange(self.idx)

    def __exit__(
        self,
        type: type[BaseException] | None,  # noqa: A002 -- PyTorch's name
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if local.here.device is not self._before:
            self.idx = self.kind.exchange(self.prev_idx, device=self._before)


class DeviceGuard(DeviceContext):
    """The same for an index that is known to be one."""

    def __init__(self, index: int) -> None:
        self.idx = index
        self.prev_idx = -1


class Devices:
    """What every kind's face says of its devices."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def init(self) -> None:
        """Initialise the kind, which its first use does as well; queued calls run now.

        Raises RuntimeError where there is no device, or in a process forked from one that had initialised the kind.
        """
        self._kind.initialisation.ensure()

    def is_initialized(self) -> bool:
        """Whether this process has used the kind."""
        return self._kind.initialised

    def is_in_bad_fork(self) -> bool:
        """Whether this process was forked from one that had used the kind, and so may not."""
        return self._kind.initialisation.bad_fork

    def is_available(self) -> bool:
        """Whether there is a device, be it an emulated one. Initialises nothing and never raises."""
        return self._kind.count() > 0

    def device_count(self) -> int:
        """How many devices there are. Initialises nothing and never raises."""
        return self._kind.count()

    def set_device(self, device: Any) -> None:
        """Make the device this thread's current one; a negative index changes nothing. Opens nothing."""
        index = self._kind.index(device)
        if index >= 0:
            self._kind.exchange(index)

    def exchange_device(self, device: int) -> int:
        """Make the device current and give the index of the one before; of a negative one nothing comes but -1."""
        if not isinstance(device, int):
            raise ForebayError("invalid argument to exchangeDevice")
        return self._kind.exchange(device)

    def synchronize(self, device: Any = None) -> None:
        """Wait until all work on all streams of the device is done; a failure nobody heard of is raised, once.

        Initialises the kind, opens nothing.
        """
        if device is None and (opened := self._kind.opened_if()) is not None:
            opened.synchronize()
            return
        index = self._kind.index(device, optional=True)
        if index >= 0:
            self._kind.hook("maybeExchangeDevice")
        self._kind.initialisation.ensure()
        opened = self._kind.opened_if(self._kind.device(None if index < 0 else index))
        if opened is not None:  # else there is nothing to wait for
            opened.synchronize()

    def lazy_call(self, callable: Callable[[], Any], **kwargs: Any) -> Any:  # noqa: A002 -- PyTorch's name
        """Call it now, and give what it gives, or call it at the kind's first use, and give None.

        `seed_all=True` and `seed=True` as `SeedTracker` says.
        """
        seeds = "all" if kwargs.get("seed_all", False) else "one" if kwargs.get("seed", False) else ""
        return self._kind.initialisation.call(callable, seeds=seeds)

    def set_sync_debug_mode(self, debug_mode: int | str) -> None:
        """Whether a call that waits for the device warns ("warn", 1), raises RuntimeError ("error", 2) or just waits.

        RuntimeError for what is no mode. Initialises the kind.
        """
        self._kind.initialisation.ensure()
        if isinstance(debug_mode, str):
            if debug_mode not in _MODES:
                raise ForebayError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
            debug_mode = _MODES.index(debug_mode)
        if not isinstance(debug_mode, int) or isinstance(debug_mode, bool):
            raise ForebayError("invalid argument to set_sync_debug_mode")
        if debug_mode not in range(len(_MODES)):
            raise ForebayError("invalid value of debug_mode, expected one of 0,1,2")
        sync_debug.set_mode(debug_mode)

    def get_sync_debug_mode(self) -> int:
        """0, 1 or 2. Initialises the kind."""
        self._kind.initialisation.ensure()
        return sync_debug.mode


_MODES = ("default", "warn", "error")
