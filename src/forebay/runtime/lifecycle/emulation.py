"""Emulation of a device kind by the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self

from forebay import backends
from forebay._base.byte_sizes import parse_bytes
from forebay.errors import WrongState
from forebay.runtime.allocator import oom_observers, pluggable_allocator
from forebay.runtime.base import lazy_init
from forebay.runtime.devices import current, retired_devices
from forebay.runtime.history import recording
from forebay.runtime.memory import ipc_memory
from forebay.runtime.pinned import history as pinned_history
from forebay.runtime.random import generator
from forebay.spi import Driver

__all__ = ["Emulation", "emulate", "observe_ends", "reset_kind"]

_running: dict[str, Emulation] = {}
_observers: list[Callable[[str], None]] = []


class Emulation:
    """Running emulation of a device kind, as returned by `forebay.emulate`.

    Stopped by `stop`, or at the end of a `with` block. An emulation whose object is not kept runs until the process
    exits.

    Parameters
    ----------
    kind : str
        The emulated kind.
    driver : Driver
        The driver of the emulated devices, which replaces that of the kind.
    """

    def __init__(self, kind: str, driver: Driver) -> None:
        self.kind = kind
        self._driver = driver
        self._override = ExitStack()
        self._override.enter_context(backends.override_driver(driver))
        _running[kind] = self

    def stop(self) -> None:
        """Stop the emulation when the queued work of its devices is done.

        Objects of the emulated devices become unusable, also in other threads. Calling it again does nothing.
        """
        replaced = backends.driver(self.kind) is not self._driver  # by another emulation, whose devices stay open
        try:
            self._override.close()  # first: no thread opens a device from here on (Note [Retired devices])
        finally:
            if not replaced:
                reset_kind(self.kind)
                for observer in [*_observers]:
                    observer(self.kind)
        if _running.get(self.kind) is self:
            del _running[self.kind]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def emulate(
    kind: str,
    count: int = 1,
    profile: str | None = None,
    memory: int | str | None = None,
    guard: bool = False,
    reserve: int | str = 0,
) -> Emulation:
    """Emulate devices of another kind on the host.

    Does not open a device. Names of emulated devices end in "(emulated)". Each emulation starts afresh: streams, seeds
    and statistics of an earlier one do not carry over.

    Parameters
    ----------
    kind : str
        The kind, such as "cuda", "mps" or "mtia".
    count : int, default 1
        Number of devices, from 1 to 64.
    profile : str, optional
        Name of the emulated hardware, see docs/reference/profiles.md. By default "h200" for cuda, "apple_m3_max" for
        mps and "mtia_v2" for mtia.
    memory : int or str, optional
        Memory of each device: bytes, or a size such as "4GiB"; that of the profile by default.
    guard : bool, default False
        Forbid the host to access device memory outside queued work. An access ends the process with SIGSEGV and prints
        the source line.
    reserve : int or str, default 0
        Bytes of the memory of each device that are in use from the start, as by the context of a real one.

    Returns
    -------
    Emulation
        A context manager that stops the emulation at the end of its `with` block.

    Raises
    ------
    ValueError
        If an argument is invalid.
    WrongState
        If devices of the kind are in use.

    Examples
    --------
    >>> import forebay
    >>> with forebay.emulate("cuda", count=2, profile="h200"):
    ...     forebay.device_count("cuda"), forebay.empty(3, device="cuda:1").device
    (2, device(type='cuda', index=1))
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 64:
        raise ValueError(f"count must be an int from 1 to 64, not {count!r}")
    nbytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if nbytes is not None and (not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 1):
        raise ValueError(f"memory must be a positive number of bytes or a size such as '4GiB', not {memory!r}")
    withheld = parse_bytes(reserve) if isinstance(reserve, str) else reserve
    if not isinstance(withheld, int) or isinstance(withheld, bool) or withheld < 0:
        raise ValueError(f"reserve must be a number of bytes or a size such as '512MiB', not {reserve!r}")
    init = lazy_init.get(kind)
    init.check_fork()
    if init.done:
        raise WrongState(
            f"devices of kind {kind!r} are in use already: start the emulation before they are used, "
            "or stop the running emulation"
        )
    retired_devices.close_unused()
    driver = backends.emulated_driver(kind, count, profile or "", nbytes, guard=bool(guard), reserve=withheld)
    emulation = Emulation(kind, driver)
    current.reset_current_device()
    return emulation


def observe_ends(observer: Callable[[str], None]) -> Callable[[], None]:
    """Call a function with the kind of each emulation that has ended from now on. Return a function that stops this."""
    _observers.append(observer)
    return partial(_observers.remove, observer)


def reset_kind(kind: str) -> None:
    """Reset the kind to its unused state when its queued work is done; its objects become unusable."""
    with ExitStack() as steps:  # run every callback, even if one raises (a warning may be configured as an error)
        steps.callback(lazy_init.get(kind).reset)
        steps.callback(generator.reset_kind, kind)
        steps.callback(current.reset_kind, kind)
        steps.callback(pluggable_allocator.reset_kind, kind)
        steps.callback(recording.set_default, kind, None)
        steps.callback(recording.set_whole, kind, None)
        steps.callback(pinned_history.set_default, kind, None)
        steps.callback(oom_observers.reset_kind, kind)
        steps.callback(retired_devices.retire_kind, kind)
        steps.callback(ipc_memory.reset_kind, kind)  # runs first
