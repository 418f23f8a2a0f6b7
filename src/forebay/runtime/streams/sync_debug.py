"""Synchronisation debug mode: warn about calls that make the host wait for a device, or reject them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, ForebayWarning, user_frame

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["ERROR", "OFF", "WARN", "check_wait", "mode", "set_mode", "warn_once"]

OFF, WARN, ERROR = 0, 1, 2
_MESSAGE = "called a synchronizing CUDA operation"

mode: int = OFF
_warned = False


def warn_once() -> None:
    """Warn, at the first call in the process, that the mode does not detect every wait."""
    global _warned  # noqa: PLW0603 -- PyTorch warns once in a process
    if not _warned:
        _warned = True
        text = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
        warnings.warn(text, ForebayWarning, stacklevel=user_frame()[1])


def set_mode(new: int) -> None:
    """Set the mode of all threads: OFF, WARN or ERROR."""
    global mode  # noqa: PLW0603 -- one process has one mode, as PyTorch
    mode = new


def check_wait(opened: OpenDevice) -> None:
    """Warn that the host is about to wait for the device, or raise ForebayError before any wait.

    Skips devices whose memory is host-visible: there is no copy to wait for.
    """
    if mode == OFF or opened.port.props.host_visible:
        return
    if mode == ERROR:
        raise ForebayError(_MESSAGE)
    warnings.warn(_MESSAGE, ForebayWarning, stacklevel=user_frame()[1])
