"""`torch.cpu`: one device, whose functions do nothing, so that programs can be written for any kind of device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "current_device",
    "current_stream",
    "device_count",
    "is_available",
    "is_initialized",
    "set_device",
    "stream",
    "synchronize",
]


def is_available() -> bool:
    """Return True."""
    return True


def is_initialized() -> bool:
    """Return True."""
    return True


def device_count() -> int:
    """Return 1: each index of the CPU denotes the same device here."""
    return 1


def current_device() -> str:
    """Return "cpu"."""
    return "cpu"


def set_device(device: Any) -> None:
    """Do nothing.

    Parameters
    ----------
    device : object
        Not used.
    """


def synchronize(device: Any = None) -> None:
    """Do nothing.

    Parameters
    ----------
    device : object, optional
        Not used.
    """


def current_stream(device: Any = None) -> None:
    """Return None: the CPU of PyTorch has no streams.

    Parameters
    ----------
    device : object, optional
        Not used.
    """


@contextmanager
def stream(stream: Any) -> Iterator[None]:  # noqa: ARG001 -- PyTorch's
    """Do nothing inside the `with` block.

    Parameters
    ----------
    stream : object
        Not used.
    """
    yield
