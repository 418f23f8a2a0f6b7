"""CUDA's devices: which is current, what they are, who reaches whom."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any

from forebay import backends, config
from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError, ForebayWarning
from forebay.faces.devices import DeviceContext, DeviceGuard, Devices
from forebay.runtime.devices.open_device import opened_indices
from forebay.spi import DeviceProps, Peers

__all__ = [
    "_CudaDeviceProperties",
    "_DeviceGuard",
    "_check_stray_context",
    "_primary_context_devices",
    "can_device_access_peer",
    "device",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "set_device",
]

_DEVICES = Devices(CUDA)


class device(DeviceContext):  # noqa: N801 -- PyTorch's name
    """The device is current inside, the one before it afterwards; None and a negative index change nothing.

    Raises ValueError for what names no CUDA device, DeviceError on entering where there is none of that index.
    (`torch.cuda.device`)
    """

    kind = CUDA


class device_of(device):  # noqa: N801 -- PyTorch's name
    """The device that the tensor is on is current inside; a tensor of another kind changes nothing.

    AttributeError for what is no tensor. (`torch.cuda.device_of`)
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


class _DeviceGuard(DeviceGuard):
    """As `device`, for an index. (`torch.cuda._DeviceGuard`)"""

    kind = CUDA


@dataclass(frozen=True, repr=False)
class _CudaDeviceProperties:
    """What a device is: sizes in bytes, rates in kHz. `get_device_properties` gives it."""

    name: str
    major: int
    minor: int
    total_memory: int
    is_multi_gpu_board: int
    is_integrated: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    warp_size: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    gcnArchName: str  # noqa: N815 -- PyTorch's name
    pci_bus_id: int
    pci_device_id: int
    pci_domain_id: int
    uuid: str

    def __repr__(self) -> str:
        first = ("name", "major", "minor", "total_memory", "multi_processor_count", "uuid")
        said = (*first, "pci_bus_id", "pci_device_id", "pci_domain_id", "L2_cache_size")
        return f"_CudaDeviceProperties({', '.join(f'{each}={self._said(each)}' for each in said)})"

    def _said(self, name: str) -> str:
        value = getattr(self, name)
        if name in ("total_memory", "L2_cache_size"):
            return f"{value >> 20}MB"
        return repr(value) if name == "name" else str(value)


def get_device_properties(device: Any = None) -> _CudaDeviceProperties:
    """What the device is. AssertionError for an index that is none. Initialises CUDA, opens nothing.

    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda", profile="h200"):
    ...     cuda.get_device_properties().multi_processor_count
    132
    """
    index = _valid(device, "Invalid device id")
    props = CUDA.describe(index)
    return _properties_of(props)


@lru_cache(maxsize=64)  # of as many devices; to make one takes long
def _properties_of(props: DeviceProps) -> _CudaDeviceProperties:
    known = {field.name: props.details.get(field.name, 0) for field in fields(_CudaDeviceProperties)}
    return _CudaDeviceProperties(**{**known, "name": props.name, "total_memory": props.total_bytes})


def get_device_name(device: Any = None) -> str:
    """Its name, which ends in "(emulated)" where that is so. (`torch.cuda.get_device_name`)"""
    return CUDA.describe(_valid(device, "Invalid device id")).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Its compute capability. (`torch.cuda.get_device_capability`)"""
    details = CUDA.describe(_valid(device, "Invalid device id")).details
    return details["major"], details["minor"]


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether the device reaches the other's memory, its own not counting.

    AssertionError for an index that is no device's, ValueError where `peer_device` has none.
    """
    named = CUDA.index(peer_device)
    index, peer = _valid(device, "Invalid device id"), _valid(named, "Invalid peer device id")
    driver = backends.driver("cuda")
    return isinstance(driver, Peers) and driver.can_access(index, peer)


def _valid(device: Any, otherwise: str) -> int:
    CUDA.initialisation.ensure()
    index = CUDA.index(device, optional=True)
    if not 0 <= index < CUDA.count():
        raise AssertionError(otherwise)
    return index


def set_device(device: Any) -> None:
    """Make the device this thread's current one; a negative index changes nothing. Opens nothing.

    Where TORCH_CUDA_CHECK_STRAY_CONTEXT asks for it, it warns or raises if others are open. (`torch.cuda.set_device`)
    """
    _DEVICES.set_device(device)
    _check_stray_context(CUDA.index(device))


@cache  # read once, as by PyTorch: it takes longer than to choose a device
def _stray_contexts() -> str:
    return config.STRAY_CONTEXTS.value()


def _check_stray_context(expected: int) -> None:
    """Warn or raise, as the environment asks, where this process has opened other devices than that one."""
    mode = _stray_contexts()
    if expected < 0 or mode not in ("warn", "error"):
        return
    stray = [index for index in _primary_context_devices() if index != expected]
    if not stray:
        return
    message = (
        f"set_device({expected}) found an existing CUDA primary context on device(s) {stray}: something used them "
        "before this process chose its own, and each takes memory there"
    )
    if mode == "error":
        raise ForebayError(message)
    warnings.warn(message, ForebayWarning, stacklevel=3)


def _primary_context_devices() -> list[int]:
    """Of the devices, those that this process has opened. (`torch.cuda._primary_context_devices`)"""
    return opened_indices("cuda")
