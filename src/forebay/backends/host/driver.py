"""Driver of the CPU devices."""

from __future__ import annotations

import errno
import os
import platform
import threading
import time
from functools import cache

from forebay._base import config
from forebay.backends.common.arguments import integer_of
from forebay.backends.host.port import BaseHostPort
from forebay.backends.host.queue import HostQueue
from forebay.errors import DeviceError
from forebay.spi import DeviceProps

__all__ = ["HostDriver", "HostPort", "HostQueue"]


class HostDriver:
    """Driver of the CPU devices: FOREBAY_CPU_DEVICES of them, each with FOREBAY_CPU_MEMORY (see `config`)."""

    kind = "cpu"

    def count(self) -> int:
        try:
            return config.CPU_DEVICES.value()
        except ValueError:
            return 0

    def why_not(self) -> str:
        try:
            config.CPU_DEVICES.value()
        except ValueError as error:
            return str(error)
        return ""

    def open(self, index: int) -> HostPort:
        index, count = integer_of(index, "index"), config.CPU_DEVICES.value()
        if index not in range(count):
            message = f"cpu:{index} does not exist: the CPU devices are numbered from 0 to {count - 1}"
            raise DeviceError(message, code=errno.ENODEV, call="open", device=f"cpu:{index}")
        memory = config.CPU_MEMORY.value()
        props = DeviceProps("cpu", index, _processor(), memory, host_visible=True, zero_pages=True, fine_segments=True)
        return HostPort(props)


class HostPort(BaseHostPort):
    """An open CPU device. A forked child continues to use it."""

    def before_fork(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for queue in self.queues():
            queue.complete_within(max(end - time.monotonic(), 0.0))

    def after_fork_in_child(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # a thread of the parent may have held the old one
        self.recount()
        for queue in self._queues.values():
            queue.continue_in_child()
        self._spaces.after_fork_in_child()
        self._sharing.after_fork_in_child()


@cache
def _processor() -> str:
    from pathlib import Path  # at its use, as its import takes long

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, names), "") or platform.processor() or platform.machine() or "processor"
