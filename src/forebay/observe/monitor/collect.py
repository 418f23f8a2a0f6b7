"""Collection of the figures of this process. Opens no device."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from forebay import backends
from forebay._base.config import UNLIMITED
from forebay._base.system_memory import resident_memory
from forebay._base.untrusted import printable, shortened
from forebay.backends.emulated.telemetry import busy_share
from forebay.errors import ForebayError
from forebay.observe.monitor import sensors
from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, Readings
from forebay.observe.monitor.live_stacks import LiveStacks, live_stacks
from forebay.runtime.allocator.statistics import flat_stats
from forebay.runtime.devices.open_device import open_devices
from forebay.runtime.history.memory_snapshot import snapshot
from forebay.spi import Telemetry

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.spi import Queue

__all__ = ["collect"]

_MAX_PROGRAM = 500  # characters


def collect(stacks: int = 0, started: float | None = None) -> ProcessFigures:
    """Return the figures of this process and its open devices. A device that is closed during the call is left out.

    Parameters
    ----------
    stacks : int, default 0
        The most call stacks of each device, those with the most live memory. Finding them takes time in proportion to
        the live blocks and to the stacks in the history.
    started : float, optional
        When the process began to offer its figures, as `time.monotonic()`; now by default.
    """
    devices = []
    for opened in open_devices().devices:
        try:
            devices.append(_device(opened, stacks))
        except ForebayError:  # its emulation has ended
            continue
    return ProcessFigures(
        pid=os.getpid(),
        program=_program(),
        seconds=0.0 if started is None else time.monotonic() - started,
        taken_at=time.time(),
        resident=resident_memory()[1],
        devices=tuple(devices),
    )


def _program() -> str:
    """Return the program and its arguments. A program may put anything in `sys.argv`."""
    try:
        text = " ".join(map(str, sys.argv))
    except Exception:  # noqa: BLE001 - see above
        text = ""
    return printable(shortened(text, _MAX_PROGRAM))


def _device(opened: OpenDevice, stacks: int) -> DeviceFigures:
    props, stats = opened.port.props, flat_stats(opened.allocator)
    _, total = opened.port.memory_info()
    queues = list(opened.queues.values())
    return DeviceFigures(
        device=str(opened.device),
        name=printable(props.name),
        emulated=props.emulated,
        capacity=None if total >= UNLIMITED else total,
        allocated=stats["allocated_bytes.all.current"],
        reserved=stats["reserved_bytes.all.current"],
        peak=stats["allocated_bytes.all.peak"],
        allocations=stats["allocation.all.allocated"],
        frees=stats["allocation.all.freed"],
        retries=stats["num_alloc_retries"],
        ooms=stats["num_ooms"],
        streams=len(queues),
        busy_streams=sum(not queue.idle() for queue in queues),
        readings=_readings(opened, queues),
        stacks=live_stacks(snapshot(opened.allocator, "", 0, trace=False), stacks) if stacks else LiveStacks(),
    )


def _readings(opened: OpenDevice, queues: list[Queue]) -> Readings:
    """Return the sensors of the driver; without any, how busy the queues are, if they measure it."""
    driver = backends.drivers().get(opened.device.kind)
    if isinstance(driver, Telemetry):
        return sensors.read(driver.sensors(opened.device.index or 0))
    meters = [queue.busy() for queue in queues if hasattr(queue, "busy")]
    return Readings(busy=busy_share(meters) if meters else None)
