# cython: language_level=3
"""Memory of a device as steps that no signal handler can split; documented in _memory.pyi."""

from libc.stdint cimport uint64_t, uintptr_t

from forebay.backends.nvidia._stream cimport Current, set_functions

from forebay.backends.nvidia.calls import FATAL as _FATAL, error_of, known_losses as _known_losses, unknown_address
from forebay.errors import DeviceError, WrongState
from forebay.spi import SEGMENT_ALIGNMENT as _SEGMENT_ALIGNMENT
from forebay.vendor import ReleaseLog, address_of, cuda_errors, integer_of, size_of

ctypedef int (*Release)(uint64_t) noexcept nogil

cdef struct Functions:
    int (*mem_alloc)(uint64_t*, size_t) noexcept nogil
    int (*mem_host_register)(uint64_t, size_t, unsigned) noexcept nogil
    int (*mem_create)(uint64_t*, size_t, void*, uint64_t) noexcept nogil
    int (*mem_map)(uint64_t, size_t, size_t, uint64_t, uint64_t) noexcept nogil
    int (*mem_address_free)(uint64_t, size_t) noexcept nogil
    Release mem_free
    Release mem_free_host
    Release mem_host_unregister
    Release mem_release
    Release event_destroy
    Release stream_destroy
    Release module_unload
    Release graph_destroy
    Release graph_exec_destroy
    Release ipc_close

# In the order of the members of `Functions`.
FUNCTIONS = (
    "cuMemAlloc", "cuMemHostRegister", "cuMemCreate", "cuMemMap", "cuMemAddressFree", "cuMemFree", "cuMemFreeHost",
    "cuMemHostUnregister", "cuMemRelease", "cuEventDestroy", "cuStreamDestroy", "cuModuleUnload", "cuGraphDestroy",
    "cuGraphExecDestroy", "cuIpcCloseMemHandle",
)
cdef Functions driver
cdef uint64_t ALIGNMENT = _SEGMENT_ALIGNMENT
cdef int OUT_OF_MEMORY = cuda_errors.OUT_OF_MEMORY


cdef tuple RELEASES = FUNCTIONS[5:]  # those of type `Release`


def load(addresses):
    set_functions(<void**>&driver, FUNCTIONS, addresses)


cdef int check_loaded() except -1:
    if driver.mem_alloc is NULL:
        raise WrongState("NVIDIA's driver is not loaded: open a device first")
    return 0


cdef int release_handle(str function, uint64_t handle) except? -1:
    check_loaded()
    if function not in RELEASES:
        raise ValueError(f"{function} does not release a handle")
    cdef Release release = (&driver.mem_free)[RELEASES.index(function)]
    cdef int result
    with nogil:
        result = release(handle)
    return result


cdef class DriverMemory:
    cdef readonly object context
    cdef readonly str name
    cdef readonly dict segments, shared_handles, pinned, managed, pinned_in_place
    cdef readonly object releases

    def __cinit__(self, *_, **__):
        self.releases = ReleaseLog()
        self.segments, self.shared_handles, self.pinned, self.managed, self.pinned_in_place = {}, {}, {}, {}, {}

    def __init__(self, context):
        self.context, self.name = context, context.name

    # Hook: a subclass implements it

    def out_of_memory(self, nbytes, function): raise NotImplementedError

    def reserve(self, nbytes):
        cdef uint64_t size = size_of(nbytes), origin = 0, address
        cdef int result
        cdef str function = "cuMemAlloc"
        cdef Current current = Current(self.context, None)
        check_loaded()
        current.enter()
        try:
            with nogil:
                result = driver.mem_alloc(&origin, size)
                # The driver guarantees 256 bytes only; multiples of 2 MiB are aligned to 2 MiB in practice.
                if not result and origin % ALIGNMENT:
                    result = driver.mem_free(origin)
                    if not result:
                        result = driver.mem_alloc(&origin, size + ALIGNMENT)
            if not result:
                address = (origin + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
                try:
                    self.segments[address] = origin, size
                except BaseException:
                    driver.mem_free(origin)
                    raise
        finally:
            current.leave()
        if result == OUT_OF_MEMORY:
            raise self.out_of_memory(size, function)
        if result:
            raise error_of(result, function, self.name)
        return address

    def release(self, address):
        self.give_back(self.segments, address, "release", "reserve", "cuMemFree", driver.mem_free)

    def unpin(self, address):
        self.give_back(self.pinned, address, "unpin", "pin", "cuMemFreeHost", driver.mem_free_host)

    def pin_in_place(self, address, nbytes):
        cdef uint64_t start = address_of(address, "address"), size = size_of(nbytes)
        cdef unsigned portable = 1  # CU_MEMHOSTREGISTER_PORTABLE
        cdef int result
        cdef Current current = Current(self.context, None)
        check_loaded()
        current.enter()
        try:
            with nogil:
                result = driver.mem_host_register(start, size, portable)
            if not result:
                self.pinned_in_place[start] = size
        finally:
            current.leave()
        if result:
            raise error_of(result, "cuMemHostRegister", self.name)

    def unpin_in_place(self, address):
        cdef Release unregister = driver.mem_host_unregister
        self.give_back(
            self.pinned_in_place, address, "unpin_in_place", "pin_in_place", "cuMemHostUnregister", unregister
        )

    def release_managed(self, address):
        self.give_back(self.managed, address, "release_managed", "reserve_managed", "cuMemFree", driver.mem_free)

    cdef bint give_back(
        self, dict known, address, str call, str origin, str function, Release release
    ) except -1:
        """Remove an address from a table and pass it to a function of the driver, unless that fails.

        From the check of the process on, no Python code runs before the memory is released.
        """
        cdef bint is_lost = self.name in _known_losses
        cdef int result = 0
        cdef uint64_t argument
        cdef Current current = Current(self.context, None)
        key = address if type(address) is int else integer_of(address, "address")
        check_loaded()
        try:
            current.enter()
        except DeviceError as error:
            # A lost device has no memory, and destructors release it.
            if is_lost and error.code in _FATAL and known.pop(key, None) is not None:
                return True
            raise
        found = known.get(key)
        if found is not None:
            if known is self.segments:
                self.releases.note(key, found[1])  # a capture that ends before the second note knows the release
            elif known is self.managed:
                self.releases.note(key, found)
            found = known.pop(key, None)
        if found is not None:
            argument = found[0] if type(found) is tuple else key
            if known is self.segments:
                self.shared_handles.pop(argument, None)  # before another thread can get the address
                self.releases.note(key, found[1])
            elif known is self.managed:
                self.releases.note(key, found)
            with nogil:
                result = release(argument)
            if result and not (is_lost and result in _FATAL):
                known[key] = found
        current.leave()
        if found is None:
            raise unknown_address(key, call, origin, self.name)
        if result and not (is_lost and result in _FATAL):
            raise error_of(result, function, self.name)
        return True


def map_page(uintptr_t properties, uint64_t page, uint64_t nbytes, list unreleased not None):
    cdef uint64_t memory
    cdef int result, released = 0
    cdef str function = "cuMemCreate"
    check_loaded()
    if properties == 0:
        raise ValueError("the address of the properties is 0")
    with nogil:
        result = driver.mem_create(&memory, nbytes, <void*>properties, 0)
    if not result:
        function = "cuMemMap"
        with nogil:
            result = driver.mem_map(page, nbytes, 0, memory, 0)
            released = driver.mem_release(memory)
        if released:
            unreleased.append(memory)
            if not result:
                result, function = released, "cuMemRelease"
    return result, function


def obtain(list handles not None, str destroy not None, function, *arguments):
    result = function(*arguments)
    if not result[0]:
        handles.append((destroy, result[1]))
    return result


def destroy_last(list handles not None):
    if not handles:  # another thread destroys them
        return None
    entry = handles.pop()
    cdef int failed = 1
    try:
        failed = release_handle(entry[0], int(entry[1]))
    finally:
        if failed:
            handles.append(entry)
    return failed


def free_addresses(uint64_t address, uint64_t nbytes, list codes not None):
    cdef int result
    check_loaded()
    with nogil:
        result = driver.mem_address_free(address, nbytes)
    codes.append(result)


def close_memory(dict opened not None, address):
    if address not in opened:
        raise KeyError(address)
    cdef int result = release_handle("cuIpcCloseMemHandle", address)
    if not result:
        if opened[address] == 1:
            del opened[address]
        else:
            opened[address] -= 1
    return result
