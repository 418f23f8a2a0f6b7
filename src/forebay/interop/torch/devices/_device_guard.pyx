# cython: language_level=3
"""Objects of PyTorch's C++ interfaces for CUDA without a driver; documented in _device_guard.pyi.

Each is a copy of an object whose methods do nothing, with a table in which some methods are replaced. A method receives
and returns what the C++ ABI prescribes for c10::Device (type and index, a byte each) and c10::Stream (the device and a
64-bit number): both are structures that registers hold.
"""

from libc.stdint cimport int8_t, int64_t, uint16_t, uintptr_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    int Py_IsInitialized() nogil
    void PyErr_SetInterrupt()

cdef enum:
    CUDA = 1  # c10::DeviceType
    METHODS = 128  # at most; what follows a shorter table is copied, and never used
    TYPE_INFORMATION = 2  # words before the first method

cdef struct Stream:
    uint16_t device
    int64_t number

cdef class Table:
    """A table of methods, and an object with it."""

    cdef void* methods[TYPE_INFORMATION + METHODS]
    cdef void* instance[1]

cdef uintptr_t _host_allocator = 0
cdef object _current_index = None
cdef object _device_count = None
cdef object _current_stream = None
cdef object _exchange_stream = None
cdef object _record_event = None
cdef object _wait_event = None
cdef object _destroy_event = None
cdef object _record_memory = None


cdef uint16_t pack(int index) noexcept nogil:
    return <uint16_t>(CUDA | (index & 0xff) << 8)


cdef int unpack(uint16_t device) noexcept nogil:
    return <int8_t>(device >> 8)


# A callback cannot raise into C++: it answers with device 0 and its default stream instead. An interrupt is raised
# again when Python code continues.

cdef void drop(object error) noexcept:
    if isinstance(error, KeyboardInterrupt):
        PyErr_SetInterrupt()


cdef int ask_index() noexcept with gil:
    try:
        return _current_index()
    except BaseException as error:
        drop(error)
        return 0


cdef int ask_count() noexcept with gil:
    try:
        return _device_count()
    except BaseException as error:
        drop(error)
        return 0


cdef int64_t ask_stream(int index) noexcept with gil:
    try:
        return _current_stream(index)
    except BaseException as error:
        drop(error)
        return 0


cdef int64_t ask_exchange(int index, int64_t number) noexcept with gil:
    try:
        return _exchange_stream(index, number)
    except BaseException as error:
        drop(error)
        return 0


cdef int64_t ask_record(int index, int64_t number) noexcept with gil:
    try:
        return _record_event(index, number)
    except BaseException as error:
        drop(error)
        return 0


cdef void ask_wait(int64_t event, int index, int64_t number) noexcept with gil:
    try:
        _wait_event(event, index, number)
    except BaseException as error:
        drop(error)


cdef void ask_destroy(int64_t event) noexcept with gil:
    try:
        _destroy_event(event)
    except BaseException as error:
        drop(error)


cdef void ask_memory(uintptr_t address, int index, int64_t number) noexcept with gil:
    try:
        _record_memory(address, index, number)
    except BaseException as error:
        drop(error)


cdef uint16_t get_device(void* self) noexcept nogil:
    return pack(ask_index() if Py_IsInitialized() else 0)


cdef uint16_t exchange_device(void* self, uint16_t device) noexcept nogil:
    return device


cdef int8_t count_devices(void* self) noexcept nogil:
    return <int8_t>(ask_count() if Py_IsInitialized() else 0)


cdef Stream get_stream(void* self, uint16_t device) noexcept nogil:
    cdef Stream stream
    cdef int index = unpack(device)
    if index < 0:
        index = ask_index() if Py_IsInitialized() else 0
    stream.device, stream.number = pack(index), ask_stream(index) if Py_IsInitialized() else 0
    return stream


cdef Stream get_default_stream(void* self, uint16_t device) noexcept nogil:
    cdef Stream stream
    stream.device, stream.number = device, 0
    return stream


cdef Stream exchange_stream(void* self, Stream stream) noexcept nogil:
    cdef Stream previous
    previous.device = stream.device
    previous.number = ask_exchange(unpack(stream.device), stream.number) if Py_IsInitialized() else 0
    return previous


cdef void do_nothing(void* self) noexcept nogil:
    pass


# An event is a number, in place of the pointer that C++ code keeps.

cdef void record_event(void* self, void** event, const Stream* stream, int8_t index, int flag) noexcept nogil:
    if not Py_IsInitialized():
        return
    if event[0] is not NULL:
        ask_destroy(<int64_t>event[0])
    event[0] = <void*>ask_record(unpack(stream.device), stream.number)


cdef void wait_for_event(void* self, void* event, const Stream* stream) noexcept nogil:
    if event is not NULL and Py_IsInitialized():
        ask_wait(<int64_t>event, unpack(stream.device), stream.number)


cdef void destroy_event(void* self, void* event, int8_t index) noexcept nogil:
    if event is not NULL and Py_IsInitialized():
        ask_destroy(<int64_t>event)


cdef bint query(void* self, void* event_or_stream) noexcept nogil:
    return True  # the operators of emulated devices are complete when they return


cdef void record_memory(void* self, void** data, const Stream* stream) noexcept nogil:
    if Py_IsInitialized():  # c10::DataPtr begins with the address
        ask_memory(<uintptr_t>data[0], unpack(stream.device), stream.number)


cdef void* get_pinned_allocator(void* self) noexcept nogil:
    return <void*>_host_allocator


cdef bint answer_true(void* self) noexcept nogil:
    return True


cdef bint answer_true_for(void* self, int8_t index) noexcept nogil:
    return True


cdef dict _METHODS = {
    "exchangeDevice": <uintptr_t>&exchange_device,
    "getDevice": <uintptr_t>&get_device,
    "deviceCount": <uintptr_t>&count_devices,
    "getStream": <uintptr_t>&get_stream,
    "getDefaultStream": <uintptr_t>&get_default_stream,
    "exchangeStream": <uintptr_t>&exchange_stream,
    "record": <uintptr_t>&record_event,
    "block": <uintptr_t>&wait_for_event,
    "destroyEvent": <uintptr_t>&destroy_event,
    "queryEvent": <uintptr_t>&query,
    "queryStream": <uintptr_t>&query,
    "synchronizeEvent": <uintptr_t>&do_nothing,
    "synchronizeStream": <uintptr_t>&do_nothing,
    "recordDataPtrOnStream": <uintptr_t>&record_memory,
    "hasCUDA": <uintptr_t>&answer_true,
    "isBuilt": <uintptr_t>&answer_true,
    "isAvailable": <uintptr_t>&answer_true,
    "init": <uintptr_t>&do_nothing,
    "hasPrimaryContext": <uintptr_t>&answer_true_for,
    "getPinnedMemoryAllocator": <uintptr_t>&get_pinned_allocator,
}


def set_callbacks(
    current_index, device_count, current_stream, exchange_stream, record_event, wait_event, destroy_event,
    record_memory,
):
    global _current_index, _device_count, _current_stream, _exchange_stream
    global _record_event, _wait_event, _destroy_event, _record_memory
    _current_index, _device_count = current_index, device_count
    _current_stream, _exchange_stream = current_stream, exchange_stream
    _record_event, _wait_event, _destroy_event, _record_memory = record_event, wait_event, destroy_event, record_memory


def set_host_allocator(uintptr_t allocator):
    global _host_allocator
    _host_allocator = allocator


def make_object(uintptr_t template, dict slots):
    cdef Table table = Table()
    cdef void** methods = (<void***>template)[0]
    cdef int slot
    memcpy(table.methods, methods - <int>TYPE_INFORMATION, sizeof(table.methods))
    for name, slot in slots.items():
        if not 0 <= slot < METHODS:
            raise ValueError(f"no method has the number {slot}")
        table.methods[<int>TYPE_INFORMATION + slot] = <void*><uintptr_t>_METHODS[name]
    table.instance[0] = &table.methods[<int>TYPE_INFORMATION]
    return table, <uintptr_t>&table.instance[0], <uintptr_t>table.instance[0]
