# cython: language_level=3
"""Objects of PyTorch's C++ interfaces for CUDA without a driver; documented in _device_guard.pyi.

Each is a copy of an object whose methods do nothing, with a table in which some methods are replaced. A method receives
and returns what the C++ ABI prescribes for c10::Device (type and index, a byte each) and c10::Stream (the device and a
64-bit number): both are structures that registers hold.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int64_t, uint16_t, uintptr_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from forebay._late_errors cimport MAX_INTERRUPTS, is_interrupt, raise_late

cdef extern from "Python.h":
    int Py_IsInitialized() nogil
    void PyErr_Fetch(PyObject** kind, PyObject** value, PyObject** traceback)
    void PyErr_Restore(PyObject* kind, PyObject* value, PyObject* traceback)

cdef enum:
    CUDA = 1  # c10::DeviceType
    METHODS = 128  # at most; what follows a shorter table is copied, and never used
    TYPE_INFORMATION = 2  # words before the first method

cdef struct Stream:
    uint16_t device
    int64_t number

cdef struct Object:
    void** methods  # the table of C++, which begins after the type information
    void* table[TYPE_INFORMATION + METHODS]

cdef struct DataPtr:  # c10::DataPtr, whose words after the first are in the order of the C++ library
    void* data
    void* words[2]
    uint16_t device

ctypedef DataPtr (*Allocate)(void* self, size_t nbytes) noexcept nogil

cdef void* _host_allocator = NULL
cdef Allocate _allocate_on_host = NULL
cdef uintptr_t _pinned_allocator = 0
cdef int _context = 0  # which of the words is the context; the other one is the function that frees it
cdef tuple _callbacks = ()
cdef dict _pinned_blocks = {}  # by the address

cdef enum:  # positions in `_callbacks`
    CURRENT_INDEX
    EXCHANGE_INDEX
    DEVICE_COUNT
    CURRENT_STREAM
    EXCHANGE_STREAM
    RECORD_EVENT
    WAIT_EVENT
    DESTROY_EVENT
    RECORD_MEMORY
    IS_PINNED
    ALLOCATE_PINNED


cdef uint16_t pack(int index) noexcept nogil:
    return <uint16_t>(CUDA | (index & 0xff) << 8)


cdef int unpack(uint16_t device) noexcept nogil:
    return <int8_t>(device >> 8)


cdef int64_t ask(int callback, int count=0, int64_t first=0, int64_t second=0, int64_t third=0) noexcept nogil:
    """Return what a callback returns for some arguments; 0 for None, and after the interpreter's end.

    It cannot raise into C++: the answer to an error is device 0 or its default stream. An interrupted callback is
    called again: Note [Interrupts arrive late]. C++ code also asks while an exception of Python passes through it,
    which is kept.
    """
    cdef int _attempt
    cdef PyObject* kind = NULL
    cdef PyObject* value = NULL
    cdef PyObject* traceback = NULL
    cdef int64_t answer = 0
    if not Py_IsInitialized():
        return 0
    with gil:
        PyErr_Fetch(&kind, &value, &traceback)
        interrupts = []
        for _attempt in range(MAX_INTERRUPTS):
            try:
                answer = _callbacks[callback](*(first, second, third)[:count]) or 0
                break
            except BaseException as error:
                if not is_interrupt(error):
                    break
                interrupts.append(error)
        raise_late(interrupts)
        PyErr_Restore(kind, value, traceback)
    return answer


cdef uint16_t get_device(void* self) noexcept nogil:
    return pack(<int>ask(CURRENT_INDEX))


cdef uint16_t exchange_device(void* self, uint16_t device) noexcept nogil:
    cdef uint16_t previous = pack(<int>ask(CURRENT_INDEX))  # first: a repeated exchange would return the new one
    ask(EXCHANGE_INDEX, 1, unpack(device))
    return previous


cdef void set_device(void* self, uint16_t device) noexcept nogil:
    ask(EXCHANGE_INDEX, 1, unpack(device))


cdef int8_t count_devices(void* self) noexcept nogil:
    return <int8_t>ask(DEVICE_COUNT)


cdef Stream get_stream(void* self, uint16_t device) noexcept nogil:
    cdef Stream stream
    cdef int index = unpack(device)
    if index < 0:
        index = <int>ask(CURRENT_INDEX)
    stream.device, stream.number = pack(index), ask(CURRENT_STREAM, 1, index)
    return stream


cdef Stream get_default_stream(void* self, uint16_t device) noexcept nogil:
    cdef Stream stream
    stream.device, stream.number = device, 0
    return stream


cdef Stream exchange_stream(void* self, Stream stream) noexcept nogil:
    cdef Stream previous
    previous.device = stream.device
    previous.number = ask(CURRENT_STREAM, 1, unpack(stream.device))  # first: as above
    ask(EXCHANGE_STREAM, 2, unpack(stream.device), stream.number)
    return previous


cdef void do_nothing(void* self) noexcept nogil:
    pass


# An event is a number, in place of the pointer that C++ code keeps.

cdef void record_event(void* self, void** event, const Stream* stream, int8_t index, int flag) noexcept nogil:
    if event[0] is not NULL:
        ask(DESTROY_EVENT, 1, <int64_t>event[0])
    event[0] = <void*>ask(RECORD_EVENT, 2, unpack(stream.device), stream.number)


cdef void wait_for_event(void* self, void* event, const Stream* stream) noexcept nogil:
    if event is not NULL:
        ask(WAIT_EVENT, 3, <int64_t>event, unpack(stream.device), stream.number)


cdef void destroy_event(void* self, void* event, int8_t index) noexcept nogil:
    if event is not NULL:
        ask(DESTROY_EVENT, 1, <int64_t>event)


cdef bint query(void* self, void* event_or_stream) noexcept nogil:
    return True  # the operators of emulated devices are complete when they return


cdef void record_memory(void* self, void** data, const Stream* stream) noexcept nogil:
    # c10::DataPtr begins with the address
    ask(RECORD_MEMORY, 3, <int64_t>data[0], unpack(stream.device), stream.number)


cdef void* get_pinned_allocator(void* self) noexcept nogil:
    return <void*>_pinned_allocator


cdef bint is_pinned(void* self, const void* data) noexcept nogil:
    return ask(IS_PINNED, 1, <int64_t>data) != 0


cdef void free_pinned(void* address) noexcept nogil:
    cdef PyObject* kind = NULL
    cdef PyObject* value = NULL
    cdef PyObject* traceback = NULL
    if address is NULL or not Py_IsInitialized():
        return
    with gil:  # without a call of Python code: Note [Storages are deleted in one step]
        PyErr_Fetch(&kind, &value, &traceback)
        _pinned_blocks.pop(<uintptr_t>address, None)
        PyErr_Restore(kind, value, traceback)


cdef void* take_pinned(size_t nbytes) noexcept nogil:
    """Return the address of pinned memory, or NULL. An interrupted callback has given its memory back."""
    cdef int _attempt
    cdef PyObject* kind = NULL
    cdef PyObject* value = NULL
    cdef PyObject* traceback = NULL
    cdef uintptr_t address = 0
    if not Py_IsInitialized():
        return NULL
    with gil:
        PyErr_Fetch(&kind, &value, &traceback)
        interrupts = []
        for _attempt in range(MAX_INTERRUPTS):
            try:
                found = _callbacks[<int>ALLOCATE_PINNED](nbytes)
                if found:
                    _pinned_blocks[found[0]] = found[1]
                    address = found[0]
                break
            except BaseException as error:
                if not is_interrupt(error):
                    break
                interrupts.append(error)
        raise_late(interrupts)
        PyErr_Restore(kind, value, traceback)
    return <void*>address


cdef DataPtr allocate_pinned(void* self, size_t nbytes) noexcept nogil:
    cdef DataPtr made
    cdef void* address = NULL
    if nbytes:
        address = take_pinned(nbytes)
        if address is NULL:
            # Memory that is not pinned, or the C++ exception of the host's allocator, which passes through this frame.
            return _allocate_on_host(_host_allocator, nbytes)
    made.data = made.words[_context] = address
    made.words[1 - _context] = <void*>&free_pinned
    made.device = 0xff00  # c10::DeviceType::CPU, no index
    return made


cdef void* no_deleter(void* self) noexcept nogil:
    return NULL


cdef bint answer_true(void* self) noexcept nogil:
    return True


cdef bint answer_true_for(void* self, int8_t index) noexcept nogil:
    return True


cdef dict _METHODS = {
    "exchangeDevice": <uintptr_t>&exchange_device,
    "getDevice": <uintptr_t>&get_device,
    "setDevice": <uintptr_t>&set_device,
    "uncheckedSetDevice": <uintptr_t>&set_device,
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
    "isPinnedPtr": <uintptr_t>&is_pinned,
    "allocate": <uintptr_t>&allocate_pinned,
    "raw_deleter": <uintptr_t>&no_deleter,
}


def set_callbacks(
    current_index, exchange_index, device_count, current_stream, exchange_stream, record_event, wait_event,
    destroy_event, record_memory, is_pinned, allocate_pinned,
):
    global _callbacks
    _callbacks = (
        current_index, exchange_index, device_count, current_stream, exchange_stream, record_event, wait_event,
        destroy_event, record_memory, is_pinned, allocate_pinned,
    )


def pinned_blocks(): return _pinned_blocks


def make_pinned_allocator(uintptr_t host_allocator, dict slots not None):
    global _host_allocator, _allocate_on_host, _pinned_allocator, _context
    cdef DataPtr probe
    if _pinned_allocator:
        return
    made, _ = make_object(host_allocator, slots)
    _host_allocator = <void*>host_allocator
    _allocate_on_host = <Allocate>(<void***>host_allocator)[0][<int>slots["allocate"]]
    probe = _allocate_on_host(_host_allocator, 1)  # its context is the memory
    if probe.words[0] is probe.data:
        _context = 0
    elif probe.words[1] is probe.data:
        _context = 1
    else:
        raise ValueError("the memory of the host's allocator has another context")
    (<void (*)(void*) noexcept>probe.words[1 - _context])(probe.data)
    _pinned_allocator = made


def make_object(uintptr_t template, dict slots not None):
    if template == 0:
        raise ValueError("the address of the object is 0")
    cdef Object copy
    cdef int slot
    memcpy(copy.table, (<void***>template)[0] - <int>TYPE_INFORMATION, sizeof(copy.table))
    for name, slot in slots.items():
        if not 0 <= slot < METHODS:
            raise ValueError(f"no method has the number {slot}")
        copy.table[<int>TYPE_INFORMATION + slot] = <void*><uintptr_t>_METHODS[name]
    cdef Object* made = <Object*>malloc(sizeof(Object))  # not Python's memory, which ends before C++'s static objects
    if made is NULL:
        raise MemoryError
    made[0] = copy
    made.methods = &made.table[<int>TYPE_INFORMATION]
    return <uintptr_t>made, <uintptr_t>made.methods
