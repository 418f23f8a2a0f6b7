"""Objects of PyTorch's C++ interfaces for CUDA without a driver."""

from collections.abc import Callable, Mapping

from forebay.runtime.pinned.pinned_allocator import PinnedBlock

def set_callbacks(
    current_index: Callable[[], int],
    exchange_index: Callable[[int], int],
    device_count: Callable[[], int],
    current_stream: Callable[[int], int],
    exchange_stream: Callable[[int, int], int],
    record_event: Callable[[int, int], int],
    wait_event: Callable[[int, int, int], None],
    destroy_event: Callable[[int], None],
    record_memory: Callable[[int, int, int], None],
    is_pinned: Callable[[int], bool],
    allocate_pinned: Callable[[int], tuple[int, PinnedBlock] | None],
) -> None:
    """Set the functions that the methods call, for all objects.

    Parameters
    ----------
    current_index : callable
        Return the index of the calling thread's device.
    exchange_index : callable
        Make the device with an index the calling thread's one, and return the index of the previous one.
    device_count : callable
        Return the number of devices.
    current_stream : callable
        Return the number of the current stream of the device with an index.
    exchange_stream : callable
        Make the stream with an index of a device and a number current, and return the number of the previous one.
    record_event : callable
        Record an event on the stream with an index of a device and a number, and return a number for it, not 0.
    wait_event : callable
        Make the stream with an index and a number, which follow the number of the event, wait for it.
    destroy_event : callable
        Delete an event by its number.
    record_memory : callable
        Record that the stream with an index and a number uses the memory at an address, which precedes them.
    is_pinned : callable
        Return True if the host's memory at an address is pinned.
    allocate_pinned : callable
        Pin memory of so many bytes, and return its address and owner; None if there is none.
    """

def pinned_blocks() -> dict[int, PinnedBlock]:
    """Return the table of the pinned memory of PyTorch's storages by its address, from which a deleter removes it."""

def make_pinned_allocator(host_allocator: int, slots: Mapping[str, int]) -> None:
    """Make the allocator of pinned memory that hooks return, once in the process: `make_object` copies the host's one.

    Where no memory can be pinned, it returns memory of the host's allocator.

    Parameters
    ----------
    host_allocator : int
        Address of PyTorch's allocator of CPU memory.
    slots : dict of str to int
        Position of "allocate" and "raw_deleter".

    Raises
    ------
    ValueError
        If the host's allocator returns other objects than expected.
    """

def make_object(template: int, slots: Mapping[str, int]) -> tuple[int, int]:
    """Copy an object, and replace methods of the copy.

    The copy is never freed: C++ code uses it also when the interpreter has ended.

    Parameters
    ----------
    template : int
        Address of the object.
    slots : dict of str to int
        Position in the table of each method to replace. Of device guards: "exchangeDevice", "getDevice", "setDevice",
        "uncheckedSetDevice", "deviceCount", "getStream", "getDefaultStream", "exchangeStream", "record", "block",
        "destroyEvent", "queryEvent", "queryStream", "synchronizeEvent", "synchronizeStream" and
        "recordDataPtrOnStream". Of hooks: "hasCUDA", "isBuilt", "isAvailable", "init", "hasPrimaryContext",
        "getPinnedMemoryAllocator" and "isPinnedPtr". Of allocators: "allocate" and "raw_deleter".

    Returns
    -------
    instance : int
        Address of the copy.
    methods : int
        Address of its table of methods.

    Raises
    ------
    ValueError
        If a position is out of range.
    KeyError
        If a method has another name.
    """
