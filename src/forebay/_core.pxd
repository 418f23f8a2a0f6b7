# Declarations for _core.pyx: native/, Python's frames, and NumPy's data-allocation handler (missing in NumPy's .pxd).

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
    const uint64_t kMinBlockSize, kMaxSmallSize, kMaxRequest

    cppclass Policy:
        Policy(const vector[uint64_t]& divisions, uint64_t max_split, uint64_t max_non_split_rounding,
               uint64_t large_segment, cbool expandable, cbool track_age, cbool exact_segments,
               uint64_t buffer_alignment, uint64_t heap_limit) except +
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
        vector[uint64_t] users
        void* owner


cdef extern from "pool/statistics.hpp" namespace "forebay" nogil:
    vector[string] metric_names() except +

    cppclass Stat:
        int64_t current, peak, allocated, freed


cdef extern from "pool/history.hpp" namespace "forebay" nogil:
    cppclass Entry:
        pass


cdef extern from "pool/stacks.hpp" namespace "forebay" nogil:
    enum:
        kMaxDepth

    cppclass StackFrame:
        uintptr_t code
        int32_t offset

    cppclass StackNode "forebay::StackTable::Node":
        StackFrame frame
        uint32_t parent

    cppclass StackTable:
        StackTable() except +
        uint32_t intern(const StackFrame* frames, size_t count) except +
        size_t size()
        const StackNode& operator[](size_t index)
        vector[StackNode] nodes() except +
        uint64_t handle(uint32_t number)
        uint32_t number_of(uint64_t handle)


cdef extern from "pool/pool.hpp" namespace "forebay" nogil:
    const uint64_t kNextRank "forebay::Pool::kNextRank", kAnyQueue "forebay::Pool::kAnyQueue"

    struct PageTransition:
        uint64_t address, size
        cbool decommitting

    cppclass PageRange:
        PageRange()
        PageRange(uint64_t address, uint64_t size)
        uint64_t address, size

    cppclass Evictable:
        uint64_t address, size, queue, age
        cbool expandable
        uint64_t freed_at

    struct BestFitBuffer:
        uint64_t address, size
        cbool has_gap

    cppclass DeferredFree:
        uint64_t serial
        uint32_t pool_number
        vector[uint64_t] users
        uint64_t queue

    struct SavedBlock:
        uint64_t address, size
        cbool live, committed

    cppclass MovedOwner "forebay::Restored::Moved":
        void* owner
        Record* block

    cppclass Restored:
        vector[MovedOwner] moved
        vector[uint64_t] unowned
        cbool pending

    cppclass NativePool "forebay::Pool":
        void set_policy(const Policy& policy)
        Policy policy()
        Record* try_allocate(uint64_t nbytes, uint64_t queue, uint32_t stack,
                             uint32_t pool_number, cbool borrowed) except +
        cbool free(Record* block, uint32_t stack) except +
        void record_stream(Record* block, uint64_t queue) except +
        vector[DeferredFree] deferred() except +
        void acknowledge_deferred(uint64_t serial)
        cbool complete_free(uint64_t serial, uint32_t stack) except +
        void adopt(uint64_t address, uint64_t size, uint64_t queue, cbool small, uint32_t stack, uint64_t rank,
                   uint32_t pool_number) except +
        Record* adopt_and_allocate(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue, uint32_t stack,
                                   uint32_t pool_number) except +
        cbool evict(uint64_t address, uint32_t stack) except +
        vector[Evictable] evictable(cbool small, uint32_t pool_number, cbool expandable, cbool parts) except +
        cbool owns(uint64_t address)
        void adopt_expandable(uint64_t address, uint64_t size, uint64_t page_size, uint64_t queue, cbool small,
                              uint32_t pool_number) except +
        PageRange choose_pages(uint64_t nbytes, uint64_t queue, uint32_t pool_number) except +
        Record* allocate_at(uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack,
                            uint32_t pool_number) except +
        Record* commit_done(uint64_t address, uint64_t nbytes, uint32_t stack) except +
        vector[PageRange] idle_pages(cbool small, uint32_t pool_number) except +
        cbool begin_commit(PageRange pages) except +
        cbool begin_decommit(PageRange pages) except +
        cbool decommit_done(uint64_t address, uint32_t stack) except +
        void rollback(uint64_t address) except +
        vector[PageTransition] page_transitions() except +
        cbool evict_expandable(uint64_t address) except +
        Record* new_buffer(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t pool_number) except +
        BestFitBuffer best_fit_buffer(uint64_t nbytes, uint64_t queue, uint32_t pool_number) except +
        uint64_t release_buffer(uint64_t address, uint64_t size) except +
        void create_pool(uint32_t pool_number, cbool allows_splits, cbool defers_frees) except +
        vector[vector[SavedBlock]] checkpoint(uint32_t pool_number) except +
        Restored restore(uint32_t pool_number, const vector[vector[SavedBlock]]& saved, uint32_t stack,
                         uint32_t free_stack) except +
        vector[uint64_t] live_addresses(uint32_t pool_number) except +
        Record* live_at(uint64_t address)
        cbool remove_pool(uint32_t pool_number) except +
        vector[uint32_t] pools_with_segments() except +
        uint64_t free_bytes(uint32_t pool_number)
        vector[int64_t] reserved_by(uint32_t pool_number) except +
        Stat count(unsigned metric, unsigned size_class) except +
        vector[int64_t] counts() except +
        vector[int64_t] oversize() except +
        uint64_t begin_meter() except +
        vector[int64_t] meter(uint64_t number, bint end) except +
        void reset_peaks()
        void reset_accumulated()
        void record_history(size_t capacity, cbool stacks, uint32_t skip, cbool keep) except +
        void set_note(uint32_t note)
        void compact_stacks(StackTable* stacks) except +
        cbool recording()
        void record_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack, uint32_t pool_number) except +
        void record_snapshot_event(uint32_t pool_number, uint64_t nbytes) except +
        void record_annotation(const Record* block, uint32_t stack) except +
        vector[Entry] history(uint64_t* lost) except +
        const char* check_invariants()


cdef extern from "pool/tables.hpp" namespace "forebay" nogil:
    cppclass SegmentRow:
        pass

    cppclass BlockRow:
        pass

    cppclass Rows:
        vector[SegmentRow] segments
        vector[BlockRow] blocks

    Rows rows_of(const NativePool& pool) except +


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
        Worker(uint64_t handle, int priority, int memory_checks) except +
        void copy(void* dst, const void* src, size_t nbytes) except +
        void fill(void* dst, int byte, size_t nbytes) except +
        void draw(const void* packed, size_t nbytes) except +
        void copy_strided(const void* packed, size_t nbytes) except +
        void program(const void* bytes, size_t nbytes) except +
        void run(Function function, void* argument, cbool host_call) except +
        uint64_t signal() except +
        shared_ptr[NativeMark] mark() except +
        uint64_t submitted()
        cbool wait_for(const shared_ptr[Timeline]& other, uint64_t tick) except +
        const shared_ptr[Timeline]& timeline()
        uint64_t reached()
        cbool idle() except +
        vector[int64_t] busy() except +
        cbool reached_soon(uint64_t tick)
        Wait wait(uint64_t tick, int64_t timeout_ns) except +
        cbool failed()
        Failure take_failure() except +
        Wait finish(int64_t timeout_ns) except +
        cbool close(int64_t timeout_ns, vector[void*]* dropped) except +
        cbool closed()
        void continue_in_child()


cdef extern from "numpy/numpy_allocator.hpp" namespace "forebay" nogil:
    ctypedef struct AllocatorFunctions:
        void* ctx

    cppclass Handler:
        AllocatorFunctions functions

    ctypedef Record* (*AllocateFn)(void* owner, uint64_t queue, size_t size, cbool* refused) noexcept

    ctypedef cbool (*StackFn)(void* owner, uint32_t* stack) noexcept

    struct ForwardedRequests:
        uint64_t count
        uint64_t bytes
        int64_t live
        int64_t peak

    cppclass NumpyAllocator:
        NumpyAllocator(NativePool* pool, uint64_t queue, AllocateFn allocate, void* owner, cbool zero_pages) except +
        AllocatorFunctions install_over(const AllocatorFunctions& previous) except +
        void* owner()
        void set_serving(cbool on)
        cbool serving()
        void set_smallest(size_t size)
        size_t smallest()
        ForwardedRequests forwarded()
        void reset_forwarded()
        void sample(NativePool* pool, uint64_t mean, uint64_t seed, StackFn stack_of_caller) except +


cdef extern from "numpy/arrayobject.h":
    """
    static_assert(sizeof(forebay::Handler) == sizeof(PyDataMem_Handler), "same size");
    static_assert(offsetof(forebay::Handler, version) == offsetof(PyDataMem_Handler, version), "same offset");
    static_assert(offsetof(forebay::Handler, functions) == offsetof(PyDataMem_Handler, allocator), "same offset");
    static_assert(sizeof(forebay::AllocatorFunctions) == sizeof(PyDataMemAllocator), "same size");
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
    static inline bool is_in_folder(PyCodeObject* code, PyObject* folder) {  // both of the same kind, if it is
        PyObject* file = code->co_filename;
        const Py_ssize_t length = PyUnicode_GET_LENGTH(folder);
        return PyUnicode_GET_LENGTH(file) > length && PyUnicode_KIND(file) >= PyUnicode_KIND(folder) &&
               (PyUnicode_KIND(file) == PyUnicode_KIND(folder)
                    ? memcmp(PyUnicode_DATA(file), PyUnicode_DATA(folder), length * PyUnicode_KIND(folder)) == 0
                    : PyUnicode_Tailmatch(file, folder, 0, PY_SSIZE_T_MAX, -1) == 1);
    }
    """
    ctypedef struct PyThreadState:
        pass
    ctypedef struct PyFrameObject:
        pass
    ctypedef struct PyCodeObject:
        pass
    bint forebay_finalizing()
    bint is_in_folder(PyCodeObject* code, object folder)
    void PyErr_Fetch(PyObject** kind, PyObject** error, PyObject** traceback)
    void PyErr_Restore(PyObject* kind, PyObject* error, PyObject* traceback)
    void PyErr_SetObject(object kind, object error)
    int Py_AddPendingCall(int (*function)(void*) noexcept with gil, void* argument)
    void Py_XDECREF(void*)
    void Py_XSETREF(PyFrameObject*, PyFrameObject*)  # a macro: the first argument is a variable

    void PyObject_GC_UnTrack(object)
    PyThreadState* PyThreadState_Get()
    PyFrameObject* PyThreadState_GetFrame(PyThreadState*)
    PyFrameObject* PyFrame_GetBack(PyFrameObject*)
    PyCodeObject* PyFrame_GetCode(PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    int PyCode_Addr2Line(PyCodeObject*, int)
