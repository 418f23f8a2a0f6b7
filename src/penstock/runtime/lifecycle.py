"""Leaving and forking: the two handlers, registered when the runtime is imported. Neither ever raises."""

from __future__ import annotations

import atexit
import os
import warnings

from penstock.errors import PenstockWarning
from penstock.runtime import current, open_device

__all__ = ["EXIT_SECONDS"]

EXIT_SECONDS = 5.0  # for all that is still queued when the interpreter leaves; what is later is dropped


@atexit.register
def _leave() -> None:
    try:
        dropped = open_device.close_queues(EXIT_SECONDS)
    except Exception as error:  # noqa: BLE001 -- an exit handler has nobody to raise to
        warnings.warn(f"closing the devices failed: {error}", PenstockWarning, stacklevel=2)
        return
    if dropped:
        queues = "1 queue" if dropped == 1 else f"{dropped} queues"
        warnings.warn(
            f"work of {queues} was not done {EXIT_SECONDS:g} s after the program's end, and was dropped: "
            "synchronize before leaving",
            PenstockWarning,
            stacklevel=2,
        )


def _in_child() -> None:
    try:
        open_device.abandon_in_child()
        current.forget_in_child()
    except Exception as error:  # noqa: BLE001 -- a fork handler has nobody to raise to
        warnings.warn(f"the forked process could not forget its devices: {error}", PenstockWarning, stacklevel=2)


os.register_at_fork(after_in_child=_in_child)
