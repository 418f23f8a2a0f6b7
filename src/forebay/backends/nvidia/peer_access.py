"""Access of a device's kernels and copies to memory of other devices, which is enabled when it is first needed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakSet

from forebay.backends.nvidia.calls import Context, driver_api
from forebay.errors import ForebayError
from forebay.vendor import cuda_errors

__all__ = ["PeerAccess"]


class PeerAccess:
    """Access of a context to the memory of other devices.

    Without it, the driver copies between the devices by way of the host, and kernels cannot use the other memory.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: WeakSet[Context] = WeakSet()  # contexts for which it was attempted

    def enable(self, other: Context) -> None:
        """Enable access to the memory of another context if the hardware permits it, before copies between both."""
        if other is not self._context and other not in self._known:
            with suppress(ForebayError):  # the copies are possible without it
                other.check_usable()
                self._enable(other.device, other.handle)
            self._known.add(other)

    def reaches(self, device: int, address: int) -> bool:
        """Return True if kernels can use memory at an address of another device. Enables that.

        Access to mapped memory, and to memory of the driver's pools, is not enabled with that of the context.
        """
        api = driver_api()
        attribute = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        failed, is_allocated = self._context.invoke(api.cuPointerGetAttribute, attribute, address)
        if failed or not is_allocated:
            return False
        failed, handle = self._context.invoke(api.cuDevicePrimaryCtxRetain, device)  # its memory keeps it active
        if failed:
            return False
        try:
            return self._enable(device, handle)
        finally:
            self._context.invoke(api.cuDevicePrimaryCtxRelease, device)

    def _enable(self, device: Any, handle: Any) -> bool:
        with self._context.current() as api:
            failed, possible = api.cuDeviceCanAccessPeer(self._context.device, device)
            if failed or not possible:
                return False
            return int(api.cuCtxEnablePeerAccess(handle, 0)[0]) in (0, cuda_errors.PEER_ACCESS_ENABLED)
