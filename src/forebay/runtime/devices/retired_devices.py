"""Devices whose emulation has ended while their memory is still referenced or their queues are still busy."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from forebay.errors import DeviceError, warn_unraisable

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["after_fork_in_child", "close_unused", "remaining", "retire"]

_retired: list[OpenDevice] = []


def retire(opened: OpenDevice) -> None:
    """Wait for the device's work and make the device unusable. Close it now if none of its memory is in use."""
    if opened.unusable:  # in a forked child: its memory belongs to the parent
        opened.mark_unusable("ended")
        opened.raw_blocks.clear()
        return
    try:
        _synchronize(opened)
    finally:  # KeyboardInterrupt ends the wait, and the emulation too
        opened.mark_unusable("ended")
        opened.allocator.retired = True
        opened.allocator.private.end()
        opened.raw_blocks.clear()
        _retired.append(opened)
    _synchronize(opened)  # again: another thread may have queued work since
    _close_if_unused(opened)


def _synchronize(opened: OpenDevice) -> None:
    try:
        opened.synchronize()
    except DeviceError as error:
        warn_unraisable(f"{error}; the error was not reported before the emulation of {opened.device} ended")


def close_unused() -> None:
    """Close retired devices whose memory has all been freed since. Called when the next emulation begins."""
    for opened in remaining():
        _close_if_unused(opened)


def remaining() -> tuple[OpenDevice, ...]:
    """Return the retired devices that are not closed yet."""
    return tuple(_retired)


def after_fork_in_child() -> None:
    """Drop all retired devices in a forked child: their queues and memory belong to the parent."""
    _retired.clear()


def _close_if_unused(opened: OpenDevice) -> None:
    """Close the device unless its memory is in use. Memory that is reserved after the check is not used (`retired`)."""
    opened.allocator.empty()
    if not opened.has_memory_in_use():
        opened.port.close()
        with suppress(ValueError):  # another thread removed it
            _retired.remove(opened)
