"""Leaving and forking: the two handlers, registered when the runtime is imported. Neither ever raises."""

from __future__ import annotations

import atexit
import os
import time

from forebay.errors import complain
from forebay.runtime.devices import current, open_device, retired_devices
from forebay.runtime.memory import ipc_memory
from forebay.runtime.random import generator

__all__ = ["EXIT_SECONDS"]

EXIT_SECONDS = 5.0  # for all that is still queued when the interpreter leaves; what is later is dropped


@atexit.register
def _leave() -> None:
    dropped = _close_queues(EXIT_SECONDS)
    if dropped:
        queues = "1 queue" if dropped == 1 else f"{dropped} queues"
        complain(
            f"work of {queues} was not done {EXIT_SECONDS:g} s after the program's end, and was dropped: "
            "synchronize before leaving"
        )


def _close_queues(seconds: float) -> int:
    """Let queued work finish while Python still runs. Gives how many queues could not.

    Memory stays: arrays may outlive us.
    """
    end = time.monotonic() + seconds
    devices = (*open_device.opened_of().devices, *retired_devices.still_there())
    dropped = 0
    for opened in devices:
        for queue in tuple(opened.queues.values()):
            try:
                dropped += not queue.close(max(end - time.monotonic(), 0.0))
            except Exception as error:  # noqa: BLE001 -- an exit handler has nobody to raise to
                complain(f"{opened.device}: a queue could not be closed: {error}")
        opened.allocator.forget_queues()
    for kind in {opened.device.kind for opened in devices}:
        if (pinned := open_device.pinned_if(kind)) is not None:
            pinned.close()
    return dropped


def _in_child() -> None:
    open_device.abandon_in_child()
    current.forget_in_child()
    generator.forget_in_child()
    ipc_memory.forget_in_child()


os.register_at_fork(after_in_child=_in_child)
