"""Leaving and forking: the two handlers, registered when the runtime is imported. Neither ever raises."""

from __future__ import annotations

import atexit
import os

from penstock.errors import complain
from penstock.runtime import current, generator, open_device, sharing

__all__ = ["EXIT_SECONDS"]

EXIT_SECONDS = 5.0  # for all that is still queued when the interpreter leaves; what is later is dropped


@atexit.register
def _leave() -> None:
    dropped = open_device.close_queues(EXIT_SECONDS)
    if dropped:
        queues = "1 queue" if dropped == 1 else f"{dropped} queues"
        complain(
            f"work of {queues} was not done {EXIT_SECONDS:g} s after the program's end, and was dropped: "
            "synchronize before leaving"
        )


def _in_child() -> None:
    open_device.abandon_in_child()
    current.forget_in_child()
    generator.forget_in_child()
    sharing.forget_in_child()


os.register_at_fork(after_in_child=_in_child)
