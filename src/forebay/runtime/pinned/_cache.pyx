# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""The tables of the pinned allocator; documented in _cache.pyi.

Each method is one step, `unpin` apart from the functions that it calls: the GIL keeps other threads out, and no signal
handler can run inside compiled code. The garbage collector could (Python 3.11), so a method that changes the tables
creates tracked objects only before.
"""

from libc.stdint cimport int64_t, uint64_t

from forebay.errors import DeviceError

cdef enum:
    BUCKETS = 65  # bucket n: blocks of more than 2^(n-1) and at most 2^n bytes
    SEGMENT_ALIGNMENT = 4096  # bytes, of each block in the reserved segment

cdef struct Stat:
    int64_t current, peak, allocated, freed

cdef struct Times:  # of driver calls, in µs; as in PyTorch, resetting peaks clears `longest` and `shortest` only
    int64_t total, longest, shortest, calls

cdef struct Counters:
    Stat allocations, nbytes
    Stat requests[BUCKETS]
    Stat requested[BUCKETS]
    Times pin_times, unpin_times


cdef class HostBlock:
    cdef readonly uint64_t address, size
    cdef readonly bint reserved
    cdef public object frames

    def __cinit__(self, uint64_t address, uint64_t size):  # not in __init__: a block in use keeps its size
        self.address, self.size = address, size


cdef class PinnedLease:
    cdef readonly HostBlock block
    cdef readonly bint returned
    cdef public bint freed
    cdef readonly dict uses
    cdef object __weakref__

    def __cinit__(self):
        self.uses = {}


cdef class PinnedCache:
    cdef Counters counters
    cdef tuple free_lists
    cdef list evicted_blocks, unpinning
    cdef uint64_t segment_address, segment_size, segment_used
    cdef bint has_segment
    cdef readonly Py_ssize_t segment_blocks

    def __cinit__(self):
        self.free_lists = tuple([] for _ in range(BUCKETS))
        self.evicted_blocks, self.unpinning = [], []

    def allocate(self, uint64_t size, PinnedLease lease not None):
        cdef list free = <list> self.free_lists[bucket_of(size)]
        cdef Py_ssize_t at = len(free)
        cdef HostBlock block
        while at > 0:
            at -= 1
            block = <HostBlock> free[at]
            if block.size >= size:
                lease.block = block
                del free[at]
                self.count_use(block, 1)
                return True
        return False

    def add(self, HostBlock block not None, PinnedLease lease not None, int64_t duration):
        lease.block = block
        self.count_use(block, 1)
        self.count_block(block, 1)
        add_time(&self.counters.pin_times, duration)

    def allocate_from_segment(self, uint64_t size, PinnedLease lease not None):
        cdef HostBlock block = HostBlock(0, size)
        cdef uint64_t padded = (size + SEGMENT_ALIGNMENT - 1) // SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT
        if padded > self.segment_size or self.segment_used > self.segment_size - padded:
            return False
        block.address, block.reserved = self.segment_address + self.segment_used, True
        self.segment_used += padded
        self.segment_blocks += 1
        lease.block = block
        self.count_use(block, 1)
        self.count_block(block, 1)
        return True

    def set_segment(self, uint64_t address, uint64_t size, int64_t duration=-1):
        if self.has_segment:
            return False
        self.segment_address, self.segment_size, self.has_segment = address, size, True
        add_time(&self.counters.pin_times, duration)
        return True

    @property
    def segment(self):
        return (self.segment_address, self.segment_size) if self.has_segment else None

    def free(self, PinnedLease lease not None, uint64_t max_cached_size):
        cdef HostBlock block = lease.block
        if block is None or lease.returned:
            return False
        lease.returned = True
        if block.size > max_cached_size:
            self.evicted_blocks.append(block)
        else:
            (<list> self.free_lists[bucket_of(block.size)]).append(block)
        self.count_use(block, -1)
        return True

    def evict_all(self):
        cdef list free
        for free in self.free_lists:
            self.evicted_blocks.extend(free)
            free.clear()

    def evicted(self):
        return self.evicted_blocks.copy()

    def unpin(self, HostBlock block not None, unpin, clock):
        begin = clock()
        cdef int64_t duration = -1
        cdef Py_ssize_t at = index_of(self.evicted_blocks, block)
        if at < 0:
            return False
        interrupt = None
        self.unpinning.append(block)
        del self.evicted_blocks[at]
        if not block.reserved:
            try:
                unpin(block.address)
            except DeviceError:
                del self.unpinning[index_of(self.unpinning, block)]
                (<list> self.free_lists[bucket_of(block.size)]).insert(0, block)
                raise
            except BaseException as error:  # ports raise an interrupt when the memory is unpinned
                interrupt = error
            try:
                duration = (clock() - begin) // 1000
            except BaseException as error:
                interrupt = interrupt or error
        del self.unpinning[index_of(self.unpinning, block)]
        self.count_block(block, -1)
        add_time(&self.counters.unpin_times, duration)
        if block.reserved:
            self.segment_blocks -= 1
            if self.segment_blocks == 0:
                self.segment_used = 0
        if interrupt is not None:
            raise interrupt
        return True

    def free_blocks(self):
        return {at: free.copy() for at, free in enumerate(self.free_lists) if free}

    def inactive(self):
        blocks = []
        for free in self.free_lists:
            blocks += free
        return blocks + self.evicted_blocks + self.unpinning

    def totals(self):
        cdef Counters now = self.counters
        return {
            "allocations": now.allocations,
            "active_requests": sum_of(now.requests),
            "allocated_bytes": now.nbytes,
            "active_bytes": sum_of(now.requested),
            "host_alloc_time": now.pin_times,
            "host_free_time": now.unpin_times,
        }

    def reset_peaks(self):
        cdef int at
        reset_peak(&self.counters.allocations)
        reset_peak(&self.counters.nbytes)
        for at in range(BUCKETS):
            reset_peak(&self.counters.requests[at])
            reset_peak(&self.counters.requested[at])
        self.counters.pin_times.longest = self.counters.pin_times.shortest = 0
        self.counters.unpin_times.longest = self.counters.unpin_times.shortest = 0

    def reset_accumulated(self):
        cdef int at
        reset_totals(&self.counters.allocations)
        reset_totals(&self.counters.nbytes)
        for at in range(BUCKETS):
            reset_totals(&self.counters.requests[at])
            reset_totals(&self.counters.requested[at])
        self.counters.pin_times.total = self.counters.pin_times.calls = 0
        self.counters.unpin_times.total = self.counters.unpin_times.calls = 0

    cdef void count_use(self, HostBlock block, int sign) noexcept:
        cdef int at = bucket_of(block.size)
        change(&self.counters.requests[at], sign)
        change(&self.counters.requested[at], sign * <int64_t> block.size)

    cdef void count_block(self, HostBlock block, int sign) noexcept:
        change(&self.counters.allocations, sign)
        change(&self.counters.nbytes, sign * <int64_t> block.size)


cdef int bucket_of(uint64_t size) noexcept:
    cdef int bits = 0
    size -= 1
    while size:
        size >>= 1
        bits += 1
    return bits


cdef Py_ssize_t index_of(list blocks, HostBlock block) noexcept:
    cdef Py_ssize_t at
    for at in range(len(blocks)):
        if blocks[at] is block:
            return at
    return -1


cdef void change(Stat* stat, int64_t by) noexcept nogil:
    stat.current += by
    stat.peak = max(stat.peak, stat.current)
    stat.allocated += max(by, 0)
    stat.freed += max(-by, 0)


cdef void add_time(Times* times, int64_t duration) noexcept nogil:
    """Add a driver call; -1 for none."""
    if duration < 0:
        return
    times.total += duration
    times.longest = max(duration, times.longest)
    times.shortest = min(duration, times.shortest) if times.shortest else duration
    times.calls += 1


cdef void reset_peak(Stat* stat) noexcept nogil:
    stat.peak = stat.current


cdef void reset_totals(Stat* stat) noexcept nogil:
    stat.allocated = stat.freed = 0


cdef Stat sum_of(Stat* stats) noexcept nogil:
    """Add the buckets. As in PyTorch, the peak is the sum of their peaks."""
    cdef Stat total = Stat(0, 0, 0, 0)
    for at in range(BUCKETS):
        total.current += stats[at].current
        total.peak += stats[at].peak
        total.allocated += stats[at].allocated
        total.freed += stats[at].freed
    return total
