# What the face uses of native/ and of NumPy's data-allocation handler (NEP 49), which NumPy's own .pxd leaves out.

from cpython.object cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.pair cimport pair
from libcpp.vector cimport vector


cdef extern from "policy.hpp" namespace "penstock" nogil:
    const uint64_t kQuantum
    uint64_t block_size(uint64_t nbytes)
    uint64_t segment_size(uint64_t size, cbool fine)
    cbool is_small(uint64_t size)


cdef extern from "block.hpp" namespace "penstock" nogil:
    enum class State(uint8_t):
        pass

    cppclass Segment:
        uint64_t address, size, queue
        cbool small
        uint32_t stack

    cppclass Record "penstock::Block":
        uint64_t address, size, requested
        Segment* segment
        uint32_t stack
        State state
        cbool untouched
        vector[uint64_t] uses


cdef extern from "ledger.hpp" namespace "penstock" nogil:
    enum Metric:
        kMetrics

    enum Kind:
        kKinds

    cppclass Count:
        int64_t current, peak, allocated, freed


cdef extern from "ring.hpp" namespace "penstock" nogil:
    cppclass Entry:
        pass


cdef extern from "stacks.hpp" namespace "penstock" nogil:
    cppclass Place:
        uintptr_t code
        int32_t offset

    cppclass StackNode "penstock::Stacks::Node":
        Place place
        uint32_t parent

    cppclass Stacks:
        uint32_t intern(const Place* places, size_t count) except +
        size_t size()
        const StackNode& operator[](size_t index)


cdef extern from "pool.hpp" namespace "penstock" nogil:
    const uint64_t kArrival "penstock::Pool::kArrival"

    cppclass NativePool "penstock::Pool":
        Record* take(uint64_t nbytes, uint64_t queue, uint32_t stack) except +
        cbool give(Record* block) except +
        void use(Record* block, uint64_t queue) except +
        cbool resize(Record* block, uint64_t nbytes, uint32_t stack) except +
        Record* live_at(uint64_t address)
        vector[pair[uint64_t, vector[uint64_t]]] deferred() except +
        cbool settle(uint64_t serial) except +
        void adopt(uint64_t address, uint64_t size, uint64_t queue, cbool small, uint32_t stack, uint64_t rank) except +
        cbool evict(uint64_t address) except +
        vector[pair[uint64_t, uint64_t]] evictable() except +
        cbool owns(uint64_t address)
        cbool overlaps(uint64_t address, uint64_t size)
        uint64_t largest_free()
        uint64_t largest_free(uint64_t queue)
        uint64_t largest_free(uint64_t queue, cbool small)
        Count count(Metric metric, Kind kind)
        void reset_peaks()
        void reset_accumulated()
        void record(size_t most) except +
        cbool recording()
        void note_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack) except +
        vector[Entry] history(uint64_t* lost) except +
        const char* broken()


cdef extern from "tables.hpp" namespace "penstock" nogil:
    cppclass SegmentRow:
        pass

    cppclass BlockRow:
        pass

    vector[SegmentRow] segment_rows(const NativePool& pool) except +
    vector[BlockRow] block_rows(const NativePool& pool) except +
