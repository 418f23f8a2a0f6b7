"""Devices whose emulation has ended, while somebody has memory of theirs, or an interrupted wait left them at work."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from forebay.errors import DeviceError, complain
from forebay.runtime.allocator import statistics

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["close", "end", "forget_in_child", "still_there"]

_ended: list[OpenDevice] = []


def end(opened: OpenDevice) -> None:
    """Its work is waited for, and memory that somebody has goes back when the next emulation begins."""
    try:
        if not opened.gone:  # in a forked child there is no work
            opened.synchronize()
    except DeviceError as error:
        complain(f"{error}; nobody had waited for it when the emulation of {opened.device} ended")
    finally:  # Ctrl-C ends the wait, and the emulation all the same
        opened.go("ended")
        opened.raw.clear()
        _ended.append(opened)
    _close(opened)


def close() -> None:
    """Close those whose memory has come back since."""
    for opened in still_there():
        _close(opened)


def still_there() -> tuple[OpenDevice, ...]:
    return tuple(_ended)


def forget_in_child() -> None:
    """Their queues did not come along; what the parent has of their memory is nothing of the child's."""
    _ended.clear()


def _close(opened: OpenDevice) -> None:
    opened.allocator.empty()
    if opened.allocator.current(statistics.RESERVED_BYTES) == 0:
        opened.port.close()
        with suppress(ValueError):  # another thread was quicker
            _ended.remove(opened)
