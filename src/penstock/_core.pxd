# What the face uses of native/ and of NumPy's data-allocation handler (NEP 49), which NumPy's own .pxd leaves out.

from cpython.object cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector


cdef extern from "policy.hpp" namespace "penstock" nogil:
    const uint64_t kQuantum
    const uint64_t kUnlimited
    cbool is_small(uint64_t size)

    cppclass Policy:
        uint64_t[16] divisions
        cbool divides
        uint64_t max_split, max_non_split_rounding, large_segment
        cbool growing, ages, fine
        uint64_t block_size(uint64_t nbytes)
        uint64_t segment_size(uint64_t size)


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

    cppclass Evictable:
        uint64_t address, size, queue, age
        cbool growing

    cppclass Deferred:
        uint64_t serial
        uint32_t home
        vector[uint64_t] uses

    cppclass Piece:
        uint64_t address, size

    cppclass NativePool "penstock::Pool":
        void set_policy(const Policy& policy)
        Policy policy()
        Record* take(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home) except +
        cbool give(Record* block, uint32_t stack) except +
        void use(Record* block, uint64_t queue) except +
        cbool resize(Record* block, uint64_t nbytes, uint32_t stack) except +
        Record* live_at(uint64_t address)
        vector[Deferred] deferred() except +
        cbool settle(uint64_t serial) except +
        void adopt(uint64_t address, uint64_t size, uint64_t queue, cbool small, uint32_t stack, uint64_t rank,
                   uint32_t home) except +
        Record* adopt_for(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue, uint32_t stack,
                          uint32_t home) except +
        cbool evict(uint64_t address) except +
        vector[Evictable] evictable(cbool small, uint32_t home, cbool growing) except +
        cbool owns(uint64_t address)
        cbool overlaps(uint64_t address, uint64_t size)
        uint64_t largest_free()
        uint64_t largest_free(uint64_t queue)
        uint64_t largest_free(uint64_t queue, cbool small)
        void adopt_space(uint64_t address, uint64_t size, uint64_t page, uint64_t queue, cbool small, uint32_t stack,
                         uint32_t home) except +
        Piece room(uint64_t nbytes, uint64_t queue, uint32_t home) except +
        Record* take_at(uint64_t address, uint64_t nbytes, uint32_t stack) except +
        Record* came(uint64_t address, uint64_t nbytes, uint32_t stack) except +
        vector[Piece] idle_pages(cbool small, uint32_t home) except +
        cbool leave(Piece piece) except +
        cbool left(uint64_t address) except +
        void stayed(uint64_t address) except +
        cbool evict_space(uint64_t address) except +
        void make_home(uint32_t number, cbool splits) except +
        cbool drop_home(uint32_t number) except +
        Count reserved_by(uint32_t home, Kind kind)
        uint64_t idle_in(uint32_t home)
        Count count(Metric metric, Kind kind)
        Count oversize(cbool segments)
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


cdef extern from "tables.hpp" namespace "penstock" nogil:
    cppclass SegmentRow:
        pass

    cppclass BlockRow:
        pass

    cppclass Rows:
        vector[SegmentRow] segments
        vector[BlockRow] blocks

    Rows rows_of(const NativePool& pool) except +
