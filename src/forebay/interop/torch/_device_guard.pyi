"""Objects of PyTorch's C++ interfaces for CUDA without a driver."""

from collections.abc import Callable, Mapping
from typing import final

@final
class Table:
    """A table of C++ methods, and an object with it. PyTorch must not use it after its deletion."""

def set_callbacks(
    current_index: Callable[[], int],
    device_count: Callable[[], int],
    current_stream: Callable[[int], int],
    exchange_stream: Callable[[int, int], int],
) -> None:
    """Set the functions that the methods call, for all objects.

    Parameters
    ----------
    current_index : callable
        Return the index of the calling thread's device.
    device_count : callable
        Return the number of devices.
    current_stream : callable
        Return the number of the current stream of the device with an index.
    exchange_stream : callable
        Make the stream with an index of a device and a number current, and return the number of the previous one.
    """

def make_object(template: int, slots: Mapping[str, int]) -> tuple[Table, int, int]:
    """Copy an object, and replace methods of the copy.

    Parameters
    ----------
    template : int
        Address of the object.
    slots : dict of str to int
        Position in the table of each method to replace: of device guards "exchangeDevice", "getDevice", "deviceCount",
        "getStream", "getDefaultStream" and "exchangeStream"; of hooks "hasCUDA", "isBuilt", "isAvailable" and
        "hasPrimaryContext".

    Returns
    -------
    table : Table
        The owner of the memory.
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
