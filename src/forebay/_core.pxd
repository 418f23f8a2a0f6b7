# What the face stands on: native/, Python's frames, NumPy's data-allocation handler, which NumPy's own .pxd leaves out.

from cpython.buffer cimport PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Copy
from cpython.exc cimport PyErr_WriteUnraisable
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "pool/policy.hpp" namespace "forebay" nogil:
    const uint64_t kQuantum, kMost

    cppclass Policy:
        Policy(const vector[uint64_t]& divisions, uint64_t max_split, uint64_t max_non_split_rounding,
               uint64_t large_segment, cbool growing, cbool ages, cbool fine, uint64_t buffers,
               uint64_t limit) except +
        uint64_t block_size(uint64_t nbytes)
        pair[uint64_t, cbool] segment_for(uint64_t nbytes)


cdef extern from "pool/block.hpp" namespace "forebay" nogil:
    enum class State(uint8_t):
        pass

    cppclass Segment:
        uint64_t address, size, queue
        cbool small
        uint32_t stack

    cppclass Record "forebay::Block":
        uint64_t address, size, requested
        Segment* segment
        uint32_t stack
        State state
        cbool untouched
        vector[uint64_t] uses


cdef extern from "pool/ledger.hpp" namespace "forebay" nogil:
    vector[string] metric_names() except +

    cppclass Count:
        int64_t current, peak, allocated, freed


cdef extern from "pool/history.hpp" namespace "forebay" nogil:
    cppclass Entry:
        pass


cdef extern from "pool/stacks.hpp" namespace "forebay" nogil:
    enum:
        kDeepest

    cppclass Place:
        uintptr_t code
        int32_t offset

    cppclass StackNode "forebay::Stacks::Node":
        Place place
        uint32_t parent

    cppclass Stacks:
        Stacks() except +
        uint32_t intern(const Place* places, size_t count) except +
        size_t size()
        const StackNode& operator[](size_t index)
        vector[StackNode] nodes() except +


cdef extern from "pool/pool.hpp" namespace "forebay" nogil:
    const uint64_t kArrival "forebay::Pool::kArrival", kAnyQueue "forebay::Pool::kAnyQueue"

    struct Moving:
        uint64_t address, size
        cbool leaving

    cppclass Piece:
        Piece()
        Piece(uint64_t address, uint64_t size)
        uint64_t address, size

    cppclass Evictable:
        uint64_t address, size, queue, age
        cbool growing

    struct Nearest:
        uint64_t address, size
        cbool room

    cppclass Deferred:
        uint64_t serial
        uint32_t home
        vector[uint64_t] uses

    cppclass NativePool "forebay::Pool":
        void set_policy(const Policy& policy)
        Policy policy()
        Record* take(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home, cbool borrowed) except +
        cbool give(Record* block, uint32_t stack) except +
        void use(Record* block, uint64_t queue) except +
        vector[Deferred] deferred() except +
        void heard(uint64_t serial)
        cbool settle(uint64_t serial) except +
        void adopt(uint64_t address, uint64_t size, uint64_t queue, cbool small, uint32_t stack, uint64_t rank,
                   uint32_t home) except +
        Record* adopt_for(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue, uint32_t stack,
                          uint32_t home) except +
        cbool evict(uint64_t address) except +
        vector[Evictable] evictable(cbool small, uint32_t home, cbool growing, cbool pieces) except +
        cbool owns(uint64_t address)
        void adopt_space(uint64_t address, uint64_t size, uint64_t page, uint64_t queue, cbool small, uint32_t stack,
                         uint32_t home) except +
        Piece room(uint64_t nbytes, uint64_t queue, uint32_t home) except +
        Record* take_at(uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home) except +
        Record* came(uint64_t address, uint64_t nbytes, uint32_t stack) except +
        vector[Piece] idle_pages(cbool small, uint32_t home) except +
        cbool come(Piece piece) except +
        cbool leave(Piece piece) except +
        cbool left(uint64_t address) except +
        void stayed(uint64_t address) except +
        vector[Moving] on_the_way() except +
        cbool evict_space(uint64_t address) except +
        Record* place(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home) except +
        Nearest nearest(uint64_t nbytes, uint64_t queue, uint32_t home) except +
        uint64_t release(uint64_t address, uint64_t size) except +
        void make_home(uint32_t number, cbool splits, cbool waits) except +
        cbool drop_home(uint32_t number) except +
        uint64_t idle_in(uint32_t home)
        vector[int64_t] reserved_by(uint32_t home) except +
        Count count(unsigned metric, unsigned kind) except +
        vector[int64_t] counts() except +
        vector[int64_t] oversize() except +
        uint64_t begin_meter() except +
        vector[int64_t] meter(uint64_t number, bint end) except +
        void reset_peaks()
        void reset_accumulated()
        void record(size_t most, cbool stacks, uint32_t skip, cbool keep) except +
        void set_note(uint32_t note)
        cbool recording()
        void note_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack, uint32_t home) except +
        void note_look() except +
        void note_block(const Record* block, uint32_t stack) except +
        vector[Entry] history(uint64_t* lost) except +
        const char* broken()


cdef extern from "pool/tables.hpp" namespace "forebay" nogil:
    cppclass SegmentRow:
        pass

    cppclass BlockRow:
        pass

    cppclass Rows:
        vector[SegmentRow] segments
        vector[BlockRow] blocks

    Rows rows_of(const NativePool& pool) except +


cdef extern from "random/draw.hpp" namespace "forebay" nogil:
    cbool readable(const void* packed, size_t nbytes)
    int draw_packed(const void* packed)


cdef extern from "queue/worker.hpp" namespace "forebay" nogil:
    ctypedef int (*Function)(void*) noexcept

    enum class Wait(int):
        Reached
        TimedOut
        Never

    cppclass Timeline:
        pass

    cppclass NativeMark "forebay::Mark":
        uint64_t tick
        int64_t nanoseconds

    enum Cause "forebay::Failure::Cause":
        HostCall "forebay::Failure::HostCall"

    cppclass Failure:
        Cause cause
        int code

    cppclass Worker:
        Worker(uint64_t handle, int priority, int watch) except +
        void copy(void* dst, const void* src, size_t nbytes) except +
        void fill(void* dst, int byte, size_t nbytes) except +
        void draw(const void* packed, size_t nbytes) except +
        void program(const void* bytes, size_t nbytes) except +
        void run(Function function, void* argument, cbool host_call) except +
        uint64_t signal() except +
        shared_ptr[NativeMark] mark() except +
        uint64_t given()
        cbool wait_for(const shared_ptr[Timeline]& other, uint64_t tick) except +
        const shared_ptr[Timeline]& timeline()
        uint64_t reached()
        cbool idle() except +
        vector[int64_t] busy() except +
        cbool soon(uint64_t tick)
        Wait wait(uint64_t tick, int64_t timeout_ns) except +
        cbool failed()
        Failure take_failure() except +
        Wait finish(int64_t timeout_ns) except +
        cbool close(int64_t timeout_ns, vector[void*]* dropped) except +
        cbool closed()
        void abandon()


cdef extern from "numpy/numpy_allocator.hpp" namespace "forebay" nogil:
    ctypedef struct Functions:
        void* ctx

    cppclass Handler:
        Functions functions

    ctypedef Record* (*Ask)(void* owner, uint64_t queue, size_t size, cbool* refused) noexcept

    cppclass Lender:
        Lender(NativePool* pool, uint64_t queue, Ask ask, void* owner, cbool pages) except +
        Functions stand_before(const Functions& below) except +
        void* owner()
        void serve(cbool on)
        cbool serving()
        void set_smallest(size_t size)
        size_t smallest()


cdef extern from "numpy/arrayobject.h":
    """
    static_assert(sizeof(forebay::Handler) == sizeof(PyDataMem_Handler), "as large as NumPy's");
    static_assert(offsetof(forebay::Handler, version) == offsetof(PyDataMem_Handler, version), "in its place");
    static_assert(offsetof(forebay::Handler, functions) == offsetof(PyDataMem_Handler, allocator), "in their place");
    static_assert(sizeof(forebay::Functions) == sizeof(PyDataMemAllocator), "the same five words");
    """
    int _import_array() except -1
    object PyDataMem_SetHandler(object handler)
    object PyDataMem_GetHandler()
    PyObject* PyDataMem_DefaultHandler


cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define forebay_finalizing() Py_IsFinalizing()
    #else
    #define forebay_finalizing() _Py_IsFinalizing()
    #endif
    """
    ctypedef struct PyThreadState:
        pass
    ctypedef struct PyFrameObject:
        pass
    ctypedef struct PyCodeObject:
        pass
    bint forebay_finalizing()
    void PyErr_Fetch(PyObject** kind, PyObject** error, PyObject** traceback)
    void PyErr_Restore(PyObject* kind, PyObject* error, PyObject* traceback)
    void PyErr_SetObject(object kind, object error)
    int Py_AddPendingCall(int (*function)(void*) noexcept with gil, void* argument)
    void Py_XDECREF(void*)
    void Py_XSETREF(PyFrameObject*, PyFrameObject*)  # a macro: the first one is a variable

    void PyObject_GC_UnTrack(object)
    PyThreadState* PyThreadState_Get()
    PyFrameObject* PyThreadState_GetFrame(PyThreadState*)
    PyFrameObject* PyFrame_GetBack(PyFrameObject*)
    PyCodeObject* PyFrame_GetCode(PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    int PyCode_Addr2Line(PyCodeObject*, int)
