"""The current device and streams of one thread, in compiled code because programs change them often.

# Note [Caches of the current device]
Frequent calls read the thread's open device and stream from `opened` and `stream`, and other devices by the name that
the program wrote from `named`, which follow from the other fields: "cuda" is the current device of the kind. Whatever
changes those fields, or makes a device unusable, must clear all three (`make_current`, `clear_cache`): a stale
cache queues work on the previous device, without an error. The end of an emulation concerns all threads, so their
states are listed (`current.reset_kind`). Rejected: looking the device up in each call, as a training step makes many;
and a common number of the last change, which each thread would invalidate for all others.
Test: tests/runtime/devices/test_current.py::test_stream_context_also_changes_the_device,
  tests/runtime/devices/test_current.py::test_names_of_devices_follow_the_current_index
"""

from typing import TypeAlias, final

from forebay._base.device_spec import Device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams.stream import Stream

_SavedState: TypeAlias = tuple[Device | None, dict[str, int], dict[OpenDevice, Stream]]
# The stream; device and indices, if others; True if the program had not set the device.
_Undo: TypeAlias = tuple[Stream | None, tuple[Device | None, dict[str, int]] | None, bool]

@final
class ThreadState:
    """The current device and streams of one thread. Outside `current` it is read-only, except for its caches."""

    device: Device | None
    explicit: bool  # True if the program set `device`, False if it is the preferred accelerator
    indices: dict[str, int]  # by kind: the index that was last current
    streams: dict[OpenDevice, Stream]
    stream_stack: list[tuple[Stream, _Undo | None]]  # active `with stream:` blocks, and what they changed
    opened: OpenDevice | None  # cached for the current device, as `stream`
    stream: Stream | None
    named: dict[object, OpenDevice]  # cached by name, or by kind and index
    def __init__(self) -> None: ...

    # Make the device the thread's current one, and the current one of its kind. Does not open it.
    def make_current(self, device: Device) -> None: ...

    # As `make_current`, and return the index of the previous device. None: the current device is of another kind, and
    # nothing has changed.
    def exchange(self, device: Device) -> int | None: ...

    # Drop the cached device and stream after a change of the current device.
    def clear_cache(self) -> None: ...

    # Return a copy of the current device, index and streams; no device unless the program set it.
    def save(self) -> _SavedState: ...
