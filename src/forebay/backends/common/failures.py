"""Limits and errors that the backends of several vendors have in common."""

from __future__ import annotations

from forebay._base import config
from forebay._base.byte_sizes import format_bytes
from forebay.errors import OutOfMemory

__all__ = ["driver_timeout", "out_of_memory_error"]


def driver_timeout() -> float:
    """Return how long the start of a vendor's driver may take: it may never return.

    Returns
    -------
    float
        Seconds, from the environment variable FOREBAY_DRIVER_TIMEOUT; 10 if it is not set.

    Raises
    ------
    ValueError
        If the variable is not a number of seconds.
    """
    return config.DRIVER_TIMEOUT.value()


def out_of_memory_error(
    device: str,
    nbytes: int,
    *,
    free: int,
    capacity: int,
    reserved: int,
    longest: int | None = None,
    code: int,
    call: str,
) -> OutOfMemory:
    """Return the error for a request that exceeds the memory of a device.

    Parameters
    ----------
    device : str
        Name of the device.
    nbytes : int
        Requested bytes.
    free : int
        Free bytes of the device.
    capacity : int
        All bytes of the device.
    reserved : int
        Bytes of the device that this process has reserved.
    longest : int, optional
        The most bytes that one request can have, for a device with such a limit.
    code : int
        The driver's error code.
    call : str
        Name of the driver's function that failed.

    Examples
    --------
    >>> print(out_of_memory_error("mtia:0", 1 << 30, free=5 << 20, capacity=1 << 30, reserved=0, code=2, call="alloc"))
    mtia:0: requested 1.00 GiB, 5.00 MiB free of 1.00 GiB, 0 B reserved by forebay
    """
    message = (
        f"{device}: requested {format_bytes(nbytes)}, {format_bytes(free)} free of {format_bytes(capacity)}, "
        f"{format_bytes(reserved)} reserved by forebay"
    )
    if longest is not None:
        message += f"; a buffer has at most {format_bytes(longest)}"
    return OutOfMemory(
        message,
        wanted=nbytes,
        free=free,
        reserved=reserved,
        capacity=capacity,
        code=code,
        call=call,
        device=device,
    )
