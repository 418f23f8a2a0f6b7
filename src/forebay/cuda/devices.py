"""CUDA devices: the current device, device properties and peer access."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, ClassVar

from forebay import backends
from forebay._base import config
from forebay._base.device_spec import DeviceLike
from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError, ForebayWarning
from forebay.names.devices import DeviceContext, DeviceFunctions, DeviceGuard
from forebay.names.kind import DeviceKind
from forebay.runtime.devices.open_device import open_device_indices
from forebay.runtime.tensors.tensor import Tensor
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

_DEVICES = DeviceFunctions(CUDA)
_NO_UUID = "00000000-0000-0000-0000-000000000000"


class device(DeviceContext):  # noqa: N801 -- PyTorch's name
    """A context manager that makes a device current and restores the previous one on exit.

    As `torch.cuda.device`. Does not open the device.

    Parameters
    ----------
    device : device or str or int
        The device; None or a negative index changes nothing.

    Raises
    ------
    ValueError
        If `device` is not a CUDA device.
    DeviceError
        On entry, if the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda", count=2):
    ...     with cuda.device(1):
    ...         print(cuda.current_device())
    1
    """

    kind: ClassVar[DeviceKind] = CUDA


class device_of(device):  # noqa: N801 -- PyTorch's name
    """A context manager that makes a tensor's device current and restores the previous one on exit.

    As `torch.cuda.device_of`.

    Parameters
    ----------
    obj : Tensor
        The tensor; one on another kind of device changes nothing.

    Raises
    ------
    AttributeError
        If `obj` is not a tensor.
    """

    def __init__(self, obj: Tensor) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


class _DeviceGuard(DeviceGuard):
    """Like `device`, for a valid index (`torch.cuda._DeviceGuard`)."""

    kind = CUDA


class _CUuuid:
    """The identifier of a device, which prints as text (`torch._C._CUuuid`)."""

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def bytes(self) -> list[int]:
        """The 16 bytes."""
        from uuid import UUID  # late: most programs need no UUIDs

        return list(UUID(self._text).bytes)

    def __str__(self) -> str:
        return self._text


@dataclass(frozen=True, repr=False, eq=False)
class _CudaDeviceProperties:
    """Device properties: sizes in bytes, clock rates in kHz, the bus width in bits."""

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
    uuid: _CUuuid

    def __repr__(self) -> str:
        first = ("name", "major", "minor", "total_memory", "multi_processor_count", "uuid")
        shown = (*first, "pci_bus_id", "pci_device_id", "pci_domain_id", "L2_cache_size")
        return f"_CudaDeviceProperties({', '.join(f'{each}={self._format(each)}' for each in shown)})"

    def _format(self, name: str) -> str:
        value = getattr(self, name)
        if name in ("total_memory", "L2_cache_size"):
            return f"{value >> 20}MB"
        return repr(value) if name == "name" else str(value)


# Written by tools/write_names.py from tools/names/devices.toml: edit the table, not these lines.


def get_device_properties(device: DeviceLike | None = None) -> _CudaDeviceProperties:
    """Return a device's properties.

    As `torch.cuda.get_device_properties`. Initialises CUDA, does not open the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    _CudaDeviceProperties
        PyTorch's fields: sizes in bytes, clock rates in kHz; 0 for what the device does not report.

    Raises
    ------
    AssertionError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda", profile="h200"):
    ...     cuda.get_device_properties().multi_processor_count
    132
    """
    return _properties_of(_described(device))


def get_device_name(device: DeviceLike | None = None) -> str:
    """Return a device's name, which ends in "(emulated)" if the device is emulated.

    As `torch.cuda.get_device_name`. Initialises CUDA, does not open the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    AssertionError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda", profile="h200"):
    ...     cuda.get_device_name()
    'NVIDIA H200 (emulated)'
    """
    return _described(device).name


def get_device_capability(device: DeviceLike | None = None) -> tuple[int, int]:
    """Return the major and the minor version of a device's compute capability.

    As `torch.cuda.get_device_capability`. Initialises CUDA, does not open the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    AssertionError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda", profile="h200"):
    ...     cuda.get_device_capability()
    (9, 0)
    """
    details = _described(device).details
    return details["major"], details["minor"]


def set_device(device: DeviceLike) -> None:
    """Make a device this thread's current one.

    As `torch.cuda.set_device`. Does not open the device.

    Parameters
    ----------
    device : device or str or int
        The device; a negative index changes nothing.

    Raises
    ------
    DeviceError
        If the device does not exist.
    RuntimeError
        If TORCH_CUDA_CHECK_STRAY_CONTEXT is "error" and this process has opened another device.

    Warns
    -----
    ForebayWarning
        If TORCH_CUDA_CHECK_STRAY_CONTEXT is "warn" and this process has opened another device.
    """
    if not CUDA.select(device):
        _DEVICES.set_device(device)
    if _stray_contexts() in ("warn", "error"):
        _check_stray_context(CUDA.index(device))


# End of the written lines.


@lru_cache(maxsize=64)  # slow to construct; a machine has fewer devices
def _properties_of(props: DeviceProps) -> _CudaDeviceProperties:
    known = {field.name: props.details.get(field.name, 0) for field in fields(_CudaDeviceProperties)}
    uuid = _CUuuid(str(props.details.get("uuid", _NO_UUID)).removeprefix("GPU-"))
    return _CudaDeviceProperties(**{**known, "name": props.name, "total_memory": props.total_bytes, "uuid": uuid})


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Return True if a device can access another device's memory directly; False also if both are the same device.

    As `torch.cuda.can_device_access_peer`. Initialises CUDA.

    Parameters
    ----------
    device : device or str or int
        The accessing device.
    peer_device : device or str or int
        The device with the memory.

    Raises
    ------
    AssertionError
        If one of the devices does not exist.
    ValueError
        If `peer_device` has no index.
    """
    named = CUDA.index(peer_device)
    index, peer = _checked_index(device, "Invalid device id"), _checked_index(named, "Invalid peer device id")
    for each in (index, peer):
        CUDA.checked_index(each, "canDeviceAccessPeer")
    driver = backends.driver("cuda")
    return isinstance(driver, Peers) and driver.can_access(index, peer)


def _described(device: Any) -> DeviceProps:
    if (opened := CUDA.known(device)) is not None:
        return opened.port.props
    return CUDA.describe(_checked_index(device, "Invalid device id"))


def _checked_index(device: Any, message: str) -> int:
    CUDA.initialisation.ensure()
    index = CUDA.index(device, optional=True)
    if not 0 <= index < CUDA.count():
        raise AssertionError(message)
    return index


@cache  # read once, as in PyTorch: reading takes longer than selecting a device
def _stray_contexts() -> str:
    return config.STRAY_CONTEXTS.value()


def _check_stray_context(expected: int) -> None:
    """Warn or raise, as the environment requests, if this process has opened a device other than `expected`."""
    if expected < 0:
        return
    stray = [index for index in _primary_context_devices() if index != expected]
    if not stray:
        return
    message = (
        f"set_device({expected}) found an existing CUDA primary context on device(s) {stray}: they were used "
        "before this process selected its device, and each context allocates memory on its device"
    )
    if _stray_contexts() == "error":
        raise ForebayError(message)
    warnings.warn(message, ForebayWarning, stacklevel=3)


def _primary_context_devices() -> list[int]:
    """Return the indices of the devices that this process has opened (`torch.cuda._primary_context_devices`)."""
    return open_device_indices("cuda")
