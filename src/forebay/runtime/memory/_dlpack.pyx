# cython: language_level=3, boundscheck=False, wraparound=False
"""Capsules of DLPack; documented in _dlpack.pyi.

The structures are those of version 1.0, which later minor versions do not change.
"""

cimport cython
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport getpid

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000
    #define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
    #endif
    """
    int Py_IsInitialized() nogil
    void* PyThreadState_GetUnchecked() nogil
    void* PyGILState_GetThisThreadState() nogil
    ctypedef int PyGILState_STATE
    PyGILState_STATE PyGILState_Ensure() nogil
    void PyGILState_Release(PyGILState_STATE) nogil
    void release_reference "Py_DECREF"(PyObject*) nogil
    ctypedef void (*Destructor)(PyObject*) noexcept
    object PyCapsule_New(void*, const char*, Destructor)
    bint PyCapsule_CheckExact(PyObject*)
    bint PyCapsule_IsValid(PyObject*, const char*)
    void* PyCapsule_GetPointer(PyObject*, const char*) except NULL
    int PyCapsule_SetName(PyObject*, const char*) except -1

cdef struct DLTensor:
    void* data
    int32_t device_type
    int32_t device_id
    int32_t ndim
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset

cdef struct Legacy:  # DLManagedTensor
    DLTensor tensor
    void* context
    void (*deleter)(Legacy*) noexcept nogil

cdef struct Versioned:  # DLManagedTensorVersioned
    uint32_t major
    uint32_t minor
    void* context
    void (*deleter)(Versioned*) noexcept nogil
    uint64_t flags
    DLTensor tensor

cdef struct Export:  # followed by the lengths and the strides
    Legacy legacy
    Versioned versioned
    PyObject* owner

cdef enum:
    MAJOR = 1
    MAX_DIMENSIONS = 64  # as NumPy's
    READ_ONLY = 1
    COPIED = 2

cdef const char* LEGACY_NAME = "dltensor"
cdef const char* VERSIONED_NAME = "dltensor_versioned"

MAX_VERSION = (MAJOR, 0)
_INVALID = (
    "from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed only once, so you might have "
    "already constructed a tensor from it once."
)


cdef void release(Export* made) noexcept nogil:
    """Free an export. Called by any thread, with or without the GIL, also while the interpreter exits and later.

    The owner remains if the interpreter exits and another thread has the GIL, which is not released any more.
    """
    cdef PyObject* owner = made.owner
    cdef void* running = PyThreadState_GetUnchecked()
    cdef PyGILState_STATE state
    free(made)
    if running is not NULL and running == PyGILState_GetThisThreadState():
        release_reference(owner)
    elif Py_IsInitialized():  # not any more from the beginning of the interpreter's exit
        state = PyGILState_Ensure()
        release_reference(owner)
        PyGILState_Release(state)


cdef void delete_legacy(Legacy* self) noexcept nogil:
    release(<Export*>self.context)


cdef void delete_versioned(Versioned* self) noexcept nogil:
    release(<Export*>self.context)


cdef void drop_legacy(PyObject* capsule) noexcept:
    cdef Legacy* managed
    if PyCapsule_IsValid(capsule, LEGACY_NAME):  # else a consumer owns the tensor
        managed = <Legacy*>PyCapsule_GetPointer(capsule, LEGACY_NAME)
        managed.deleter(managed)


cdef void drop_versioned(PyObject* capsule) noexcept:
    cdef Versioned* managed
    if PyCapsule_IsValid(capsule, VERSIONED_NAME):  # as above
        managed = <Versioned*>PyCapsule_GetPointer(capsule, VERSIONED_NAME)
        managed.deleter(managed)


def export_memory(
    uint64_t address, shape, strides, element, device, owner, *, bint versioned, bint read_only, bint copied,
):
    cdef tuple lengths = tuple(shape), steps = tuple(strides)  # items may be objects that change the lists
    cdef Py_ssize_t at, count = len(lengths)
    cdef DLTensor tensor
    if len(steps) != count or count > MAX_DIMENSIONS:
        raise ValueError(
            f"a tensor has one stride for each of at most {MAX_DIMENSIONS} dimensions, not {len(steps)} for {count}"
        )
    cdef Export* made = <Export*>malloc(sizeof(Export) + 2 * count * sizeof(int64_t))
    if made is NULL:
        raise MemoryError()
    try:
        tensor.data, tensor.byte_offset, tensor.ndim, tensor.lanes = <void*><uintptr_t>address, 0, <int32_t>count, 1
        tensor.device_type, tensor.device_id = device
        tensor.code, tensor.bits = element
        tensor.shape = <int64_t*>(made + 1)
        tensor.strides = tensor.shape + count
        for at in range(count):
            tensor.shape[at], tensor.strides[at] = lengths[at], steps[at]
        made.versioned.major, made.versioned.minor = MAX_VERSION
        made.versioned.flags = READ_ONLY * read_only | COPIED * copied
        made.legacy.tensor = made.versioned.tensor = tensor
        made.legacy.context = made.versioned.context = made
        made.legacy.deleter, made.versioned.deleter = delete_legacy, delete_versioned
        if versioned:
            capsule = PyCapsule_New(&made.versioned, VERSIONED_NAME, drop_versioned)
        else:
            capsule = PyCapsule_New(&made.legacy, LEGACY_NAME, drop_legacy)
    except BaseException:
        free(made)
        raise
    Py_INCREF(owner)
    made.owner = <PyObject*>owner
    return capsule


def device_of(capsule):
    cdef Legacy* legacy
    cdef Versioned* versioned
    cdef DLTensor* tensor = open_capsule(<PyObject*>capsule, &legacy, &versioned)
    return tensor.device_type, tensor.device_id


def element_of(capsule):
    cdef Legacy* legacy
    cdef Versioned* versioned
    cdef DLTensor* tensor = open_capsule(<PyObject*>capsule, &legacy, &versioned)
    return tensor.code, tensor.bits


cdef DLTensor* open_capsule(PyObject* capsule, Legacy** legacy, Versioned** versioned) except NULL:
    """Return the tensor of a capsule that was not consumed, and set the one of the two that manages it."""
    legacy[0], versioned[0] = NULL, NULL
    if PyCapsule_CheckExact(capsule) and PyCapsule_IsValid(capsule, VERSIONED_NAME):
        versioned[0] = <Versioned*>PyCapsule_GetPointer(capsule, VERSIONED_NAME)
        if versioned[0].major > MAJOR:  # what follows the deleter may have another form
            raise RuntimeError(
                f"unsupported DLPack capsule major version: {versioned[0].major}. Maximum supported version: {MAJOR}"
            )
        return &versioned[0].tensor
    if PyCapsule_CheckExact(capsule) and PyCapsule_IsValid(capsule, LEGACY_NAME):
        legacy[0] = <Legacy*>PyCapsule_GetPointer(capsule, LEGACY_NAME)
        return &legacy[0].tensor
    raise RuntimeError(_INVALID)


@cython.final
cdef class ManagedTensor:
    cdef Legacy* legacy
    cdef Versioned* versioned
    cdef int process
    cdef readonly uint64_t address
    cdef readonly tuple shape, strides, element, device
    cdef readonly int lanes
    cdef readonly bint read_only

    def __init__(self, capsule):
        cdef Legacy* legacy
        cdef Versioned* versioned
        cdef int32_t at
        if self.process:
            raise TypeError("a ManagedTensor is initialised once")
        cdef DLTensor* tensor = open_capsule(<PyObject*>capsule, &legacy, &versioned)
        PyCapsule_SetName(<PyObject*>capsule, "used_dltensor_versioned" if legacy is NULL else "used_dltensor")
        self.legacy, self.versioned, self.process = legacy, versioned, getpid()  # from here on, it is freed with this
        self.read_only = versioned is not NULL and versioned.flags & READ_ONLY
        self.device, self.element = (tensor.device_type, tensor.device_id), (tensor.code, tensor.bits)
        self.lanes = tensor.lanes
        if not 0 <= tensor.ndim <= MAX_DIMENSIONS:
            raise BufferError(f"a tensor cannot have {tensor.ndim} dimensions")
        if tensor.ndim and tensor.shape is NULL:
            raise BufferError(f"the DLPack tensor has {tensor.ndim} dimensions, but no lengths")
        self.address = <uint64_t><uintptr_t>tensor.data + tensor.byte_offset if tensor.data is not NULL else 0
        self.shape = tuple([tensor.shape[at] for at in range(tensor.ndim)])
        if tensor.strides is not NULL:
            self.strides = tuple([tensor.strides[at] for at in range(tensor.ndim)])

    def __dealloc__(self):
        if self.process != getpid():  # in a forked child the memory belongs to the parent
            return
        if self.legacy is not NULL and self.legacy.deleter is not NULL:
            self.legacy.deleter(self.legacy)
        if self.versioned is not NULL and self.versioned.deleter is not NULL:
            self.versioned.deleter(self.versioned)
