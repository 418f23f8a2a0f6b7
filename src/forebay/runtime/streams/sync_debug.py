"""Whether a program wants to hear of calls that wait for a device, which cost it the time in which both could work."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, ForebayWarning, user_frame

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["ERROR", "OFF", "WARN", "mode", "set_mode", "waiting"]

OFF, WARN, ERROR = 0, 1, 2
_SAID = "called a synchronizing CUDA operation"

mode = OFF


def set_mode(new: int) -> None:
    """OFF, WARN or ERROR, for all threads."""
    global mode  # noqa: PLW0603 -- one process has one mode, as PyTorch
    mode = new


def waiting(opened: OpenDevice) -> None:
    """The host is about to wait for the device: warn, or raise ForebayError before anything is done.

    Nothing is said of devices whose memory the host reads anyway: there is no copy to wait for.
    """
    if mode == OFF or opened.port.props.host_visible:
        return
    if mode == ERROR:
        raise ForebayError(_SAID)
    warnings.warn(_SAID, ForebayWarning, stacklevel=user_frame()[1])
