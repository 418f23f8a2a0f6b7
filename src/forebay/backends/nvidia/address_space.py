"""Expandable address space of a CUDA device: each page is physical memory of its own, mapped to reserved addresses."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from forebay.backends.nvidia._memory import free_addresses, map_page
from forebay.backends.nvidia.calls import call_into, check, driver_api, error_of
from forebay.backends.nvidia.context import PrimaryContext
from forebay.errors import OutOfMemory
from forebay.spi import SEGMENT_ALIGNMENT
from forebay.vendor import AddressSpace, PageLedger, ReleaseLog, check_space_arguments, cuda_errors

__all__ = ["CudaAddressSpaces"]


class CudaAddressSpaces:
    """The address space of a port; implements `spi.Growable`.

    `out_of_memory` returns the error for a number of bytes and the driver's function that could not provide them.
    """

    def __init__(
        self, context: PrimaryContext, releases: ReleaseLog, out_of_memory: Callable[[int, str], OutOfMemory]
    ) -> None:
        self._context = context
        self._releases = releases
        self._out_of_memory = out_of_memory
        self._ledger = PageLedger(context.name)
        self._mapping = set[int]()  # pages that are being mapped or unmapped
        self._unreleased: list[Any] = []  # memory whose release failed
        self._lock = RLock()
        self._api = driver_api()
        self._property = self._memory_of(context.device)
        self._access = self._api.CUmemAccessDesc()
        self._access.location = self._property.location
        self._access.flags = self._api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

    @property
    def held(self) -> int:
        """Committed bytes."""
        return self._ledger.held

    def memory(self) -> list[tuple[int, int]]:
        """Return address and size of each range of committed memory."""
        return self._ledger.memory()

    def reserve(self, nbytes: int, page: int) -> int:
        nbytes, page = check_space_arguments(nbytes, page, self._page_size())
        made: list[Any] = []
        space: AddressSpace | None = None
        try:
            with self._context.current() as api:
                call_into(made, api.cuMemAddressReserve, nbytes, SEGMENT_ALIGNMENT, 0, 0)
                space = AddressSpace(self._address_of(made[0], nbytes), nbytes, page)
                self._ledger.add(space)
        except BaseException:  # also of a signal handler
            if made and not made[0][0]:
                if space is not None:
                    self._ledger.remove(space)
                self._context.try_to_invoke("cuMemAddressFree", made[0][1], nbytes)
            raise
        return space.address

    def _address_of(self, result: Any, nbytes: int) -> int:
        # The size has been checked, so that a driver for which it is invalid has no addresses for it.
        if int(result[0]) in (cuda_errors.OUT_OF_MEMORY, cuda_errors.INVALID_VALUE):
            raise self._out_of_memory(nbytes, "cuMemAddressReserve")
        return int(check(result, "cuMemAddressReserve", self._context.name))

    def release(self, address: int) -> None:
        with self._lock, self._context.current():
            space = self._ledger.find_empty(address)
            freed: list[int] = []
            try:
                self._unmap_rest(space)
                free_addresses(space.address, space.nbytes, freed)
            finally:
                if not freed:  # interrupted: callers take the space as released
                    free_addresses(space.address, space.nbytes, freed)
                if not freed[0]:
                    self._ledger.remove(space)
            if freed[0]:
                raise error_of(freed[0], "cuMemAddressFree", self._context.name)

    def commit(self, address: int, nbytes: int) -> None:
        with self._lock, self._context.current():
            space, address, nbytes = self._ledger.find_range("commit", address, nbytes)
            mapped = list[int]()
            try:
                for start, size in space.uncommitted(address, nbytes):
                    for page in range(start, start + size, space.page):
                        self._map(page, space.page)
                        mapped.append(page)
                    access = self._api.cuMemSetAccess(start, size, [self._access], 1)
                    check(access, "cuMemSetAccess", self._context.name)
            except BaseException as error:
                for page in range(address, address + nbytes, space.page):
                    if page in self._mapping:  # also one whose mapping was interrupted
                        self._unmap(page, space.page)
                if isinstance(error, OutOfMemory):  # of one page
                    raise self._out_of_memory(nbytes, error.call) from None
                raise
            self._ledger.write(space, address, nbytes, held=True)
            self._mapping.difference_update(mapped)

    def decommit(self, address: int, nbytes: int) -> None:
        with self._lock, self._context.current():
            space, address, nbytes = self._ledger.find_range("decommit", address, nbytes)
            self._ledger.withdraw(space, address, nbytes, self._releases)  # Note [Decommit protocol]
            for page in range(address, address + nbytes, space.page):
                is_repeated = page in self._mapping
                if not is_repeated and not space.committed_in(page, space.page):
                    continue
                self._mapping.add(page)
                result = self._api.cuMemUnmap(page, space.page)
                if result[0] and not is_repeated:
                    self._mapping.discard(page)
                    self._ledger.admit(space, address, nbytes)
                    check(result, "cuMemUnmap", self._context.name)
                self._ledger.write(space, page, space.page, held=False)
                self._mapping.discard(page)

    def contains(self, address: int) -> bool:
        """Return True if an address lies in the address space."""
        return self._ledger.at(address, 1) is not None

    def close(self) -> None:
        """Release all address space. Errors are ignored: the device may be lost."""
        with self._context.current() as api:
            for space in self._ledger.clear():
                for start, size in space.memory():
                    for page in range(start, start + size, space.page):
                        api.cuMemUnmap(page, space.page)
                self._unmap_rest(space)
                api.cuMemAddressFree(space.address, space.nbytes)
            while self._unreleased:
                api.cuMemRelease(self._unreleased.pop())

    def _map(self, page: int, nbytes: int) -> None:
        """Map new memory to a page. The mapping owns it."""
        if page in self._mapping:  # an earlier call was interrupted
            self._unmap(page, nbytes)
        self._mapping.add(page)
        code, function = map_page(self._property.getPtr(), page, nbytes, self._unreleased)
        if not code:
            return
        if function == "cuMemCreate":
            self._mapping.discard(page)
        if code == cuda_errors.OUT_OF_MEMORY:
            raise self._out_of_memory(nbytes, function)
        raise error_of(code, function, self._context.name)

    def _unmap(self, page: int, nbytes: int) -> None:
        """Unmap a page of `_mapping`. It may not be mapped, if the call that maps it was interrupted."""
        code = int(self._api.cuMemUnmap(page, nbytes)[0])
        if code in (0, cuda_errors.INVALID_VALUE):
            self._mapping.discard(page)

    def _unmap_rest(self, space: AddressSpace) -> None:
        """Unmap the pages of a space whose mapping or unmapping was interrupted."""
        for page in tuple(self._mapping):
            if space.address <= page < space.address + space.nbytes:
                self._unmap(page, space.page)

    def _page_size(self) -> int:
        minimum = self._api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        result = self._api.cuMemGetAllocationGranularity(self._property, minimum)
        return int(check(result, "cuMemGetAllocationGranularity", self._context.name))

    def _memory_of(self, device: Any) -> Any:
        memory = self._api.CUmemAllocationProp()
        memory.type = self._api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        memory.location.type = self._api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        memory.location.id = int(device)
        return memory
