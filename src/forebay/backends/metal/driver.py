"""Driver of Apple's GPU. There is one device, as torch.mps has."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any

from forebay.backends.metal.calls import autorelease_pool, foundation, invoke, metal
from forebay.backends.metal.discovery import discover
from forebay.errors import DeviceError, Forked
from forebay.spi import DeviceProps, Heaps
from forebay.vendor import cuda_errors, integer_of

if TYPE_CHECKING:
    from forebay.backends.metal.port import MetalPort
    from forebay.backends.metal.sensors import MetalSensors

__all__ = ["MetalDriver"]

_POOLED_STREAMS = 32  # as torch.mps
_FAMILIES = ("Apple10", "Apple9", "Apple8", "Apple7", "Mac2")  # the newest first


class MetalDriver:
    """Driver of the GPU that Metal finds. Counting it creates no queue and no memory."""

    kind: str = "mps"

    def __init__(self) -> None:
        self._ports: list[MetalPort] = []
        self._props: DeviceProps | None = None  # which a forked child cannot query

    def count(self) -> int:
        return 0 if discover().device is None else 1

    def why_not(self) -> str:
        return discover().text()

    def describe(self, index: int) -> DeviceProps:
        if self._props is not None and integer_of(index, "index") == 0:
            return self._props
        return self._described(self._device(index, "describe"))

    def open(self, index: int) -> MetalPort:
        from forebay.backends.metal.port import MetalPort  # needs the compiled core

        device = self._device(index, "open")
        port = MetalPort(self._described(device), device)
        self._ports[:] = [port]
        return port

    def machine_count(self) -> int:
        return self.count()

    def sensors(self, index: int) -> MetalSensors:
        from forebay.backends.metal.sensors import MetalSensors

        return MetalSensors(self._device(index, "sensors"), self._ports)

    def _described(self, device: Any) -> DeviceProps:
        found: DeviceProps = invoke(f"{self.kind}:0", _props, device)
        self._props = found
        return found

    def _device(self, index: int, function: str) -> Any:
        index, found = integer_of(index, "index"), discover()
        name = f"{self.kind}:{index}"
        if found.device is None:
            raise DeviceError(found.text(), call=function, device=name)
        if index != 0:
            raise DeviceError(
                f"{name} does not exist: there is one MPS device", code=cuda_errors.INVALID_DEVICE, call=function
            )
        if found.process != os.getpid():
            raise Forked(
                f"{name}: Metal was initialised before this process was forked, and does not survive a fork: start "
                "processes with the method 'spawn' or 'forkserver'"
            )
        return found.device


def _props(device: Any) -> DeviceProps:
    api = metal()
    with autorelease_pool():
        unified = bool(device.hasUnifiedMemory())
        recommended, longest = int(device.recommendedMaxWorkingSetSize()), int(device.maxBufferLength())
        options = api.MTLResourceStorageModeShared if unified else api.MTLResourceStorageModePrivate
        alignment = int(device.heapBufferSizeAndAlignWithLength_options_(1, options).align)
        details = {
            "name": str(device.name()),
            "family": _family(api, device),
            "registry_id": int(device.registryID()),
            "recommended_max_memory": recommended,
            "max_buffer_length": longest,
            "unified_memory": int(unified),
            "buffer_alignment": max(alignment, 256),
            "core_count": _core_count(),
        }
        total = int(foundation().NSProcessInfo.processInfo().physicalMemory()) if unified else recommended
    return DeviceProps(
        "mps",
        0,
        str(details["name"]),
        total,
        queue_visible=unified,
        pooled_streams=_POOLED_STREAMS,
        stream_priorities=1,
        heaps=Heaps(recommended, longest, unified, int(str(details["buffer_alignment"]))),
        details={**details, "total_memory": total},
    )


def _family(api: Any, device: Any) -> str:
    """Return the name of the newest GPU family that the device supports, such as "Apple9"."""
    for name in _FAMILIES:
        family = getattr(api, f"MTLGPUFamily{name}", None)  # PyObjC may be older than the family
        if family is not None and device.supportsFamily_(family):
            return name
    return ""


@cache
def _core_count() -> int:
    """Return the number of GPU cores from the system's registry; 0 if it has none. Metal does not report it."""
    try:
        command = ["/usr/sbin/ioreg", "-rc", "AGXAccelerator", "-d", "1"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    digits = found.partition('"gpu-core-count" = ')[2].partition("\n")[0].strip()
    return int(digits) if digits.isdigit() else 0
