"""Devices whose emulation has ended while their memory is still referenced or their queues are still busy.

# Note [Retired devices]
An emulation ends while the program still has tensors, and while other threads allocate and queue work. First the driver
is replaced, so that no thread opens a device from here on; then the device becomes unusable, so that each use raises
WrongState; then its work is waited for again, as another thread may have queued some. Memory that a tensor still has
stays mapped, as arrays and queued work may refer to it, and the port is closed when the last is deleted and the next
emulation begins. Memory that an allocation reserves between the check and the end is not returned: the allocation
checks `retired` after it has reserved. An interrupt ends the wait, not the end. Rejected: unmapping at once, which ends
a process that reads an array, and refusing to stop while tensors exist, which a program cannot know.
Test: tests/runtime/lifecycle/test_emulation.py::test_memory_reserved_while_the_device_is_closed_is_not_returned,
  tests/runtime/lifecycle/test_emulation.py::test_no_thread_opens_a_device_of_an_ending_emulation
"""

from __future__ import annotations

from contextlib import ExitStack, suppress

from forebay.errors import DeviceError, warn_unraisable
from forebay.runtime.base import capture_state
from forebay.runtime.devices import current, open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.pinned import registered_memory

__all__ = ["after_fork_in_child", "close_unused", "remaining", "retire_kind"]

_retired: list[OpenDevice] = []


def retire_kind(kind: str) -> None:
    """Retire all open devices of the kind: they become unusable, and the kind has no open device afterwards."""
    capture_state.abandon_kind(kind)
    ended, pinned = open_device.remove_kind(kind)
    current.clear_caches()  # else threads that have used the devices would use them until their work is done
    registered_memory.unregister_kind(kind)
    with ExitStack() as steps:  # runs every step, even if the wait in one is interrupted
        steps.callback(close_unused)  # again: pinned memory of one device may be in use by the others
        if pinned is not None:
            steps.callback(pinned.retire)
        for opened in reversed(ended):
            steps.callback(_retire, opened)


def _retire(opened: OpenDevice) -> None:
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
