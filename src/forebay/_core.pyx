# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""Python bindings of the native core; documented in _core.pyi, declared in _core.pxd.

A pool's lock is taken while the GIL is held, which is safe because the pool makes no callbacks. Calls that may block
(waiting for a queue, closing a queue) release the GIL first.
"""

cimport cython

from forebay._late_errors cimport call_in_destructor, report

cdef enum:  # `Action`, and `DEFERRED_FREE` of the replay
    kAllocated = 1, kRequested = 2, kFreed = 3, kDeferred = 16

MIN_BLOCK_SIZE, MAX_SMALL_BYTES, MAX_REQUEST_BYTES = kMinBlockSize, kMaxSmallSize, kMaxRequest
METRICS = tuple([name.decode() for name in metric_names()])


@cython.final
@cython.freelist(64)
@cython.no_gc  # refers to its pool only, and a pool holds no reference to a block
cdef class Block:
    cdef Record* record  # null once freed
    cdef readonly Pool pool
    cdef readonly uint64_t address

    def __init__(self): raise TypeError("a Block is created by a pool's try_allocate() or allocate()")

    def __dealloc__(self):
        if self.record is not NULL:
            self.pool.free(self)

    def free(self):
        if self.record is not NULL:
            self.pool.free(self)

    def record_stream(self, uint64_t queue): self.pool.native.record_stream(self.live_record(), queue)

    cdef Record* live_record(self) except NULL:
        if self.record is NULL:
            raise ValueError(f"the block at {self.address:#x} was already freed")
        return self.record

    @property
    def nbytes(self): return self.live_record().requested
    @property
    def size(self): return self.live_record().size
    @property
    def queue(self): return self.live_record().segment.queue
    @property
    def freed(self): return self.record is NULL

    def __repr__(self):
        state = "freed" if self.record is NULL else f"{self.record.requested} bytes"
        return f"<Block at {self.address:#x}, {state}>"


cdef class Pool:
    cdef NativePool native
    cdef StackTable stacks  # of the recording, and of blocks that live on after it
    cdef list codes  # Note [Stacks refer to code objects]
    cdef size_t depth
    cdef str folder  # of the files whose functions a stack does not begin with; None: it begins with any
    cdef bint frees  # a free records its own stack
    cdef public bint has_pending_frees, routed  # some frees are pending; some allocations go to private pools
    cdef public bint annotating  # history entries carry the number that `_annotation_id` returns
    cdef object __weakref__

    cdef Block wrap(self, Record* record):
        if record is NULL:
            return None
        cdef Block block = Block.__new__(Block)
        block.record, block.pool, block.address = record, self, record.address
        record.owner = <void*>block  # cleared by `Block.free`, so it exists while the record has it
        return block

    cdef void free(self, Block block) noexcept:
        cdef uint32_t stack = 0
        if self.frees or self.annotating:
            try:
                stack = self.current_stack()
            except BaseException as failure:  # from a signal handler, or MemoryError: the block is freed regardless
                report(failure)
        cdef Record* record = block.record  # only now: finalizers may have run, and freed or restored it
        block.record = NULL
        if record is not NULL and self.native.free(record, stack if self.frees else 0):  # pending: other queues use it
            call_in_destructor(self._defer)

    cdef uint32_t current_stack(self):
        """Return the number of the current Python stack; 0 unless recording."""
        if not self.native.recording():
            return 0
        if self.annotating:
            self.native.set_note(self._annotation_id())
        if self.depth == 0:
            return 0
        cdef StackFrame[kMaxDepth] frames
        cdef size_t count = 0, at
        cdef PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get())
        cdef PyCodeObject* code
        cdef bint skips = self.folder is not None
        while frame is not NULL and count < self.depth:
            code = PyFrame_GetCode(frame)
            skips = skips and is_in_folder(code, self.folder)
            if not skips:
                frames[count].code = <uintptr_t>code
                frames[count].offset = PyFrame_GetLasti(frame)
                count += 1
            Py_XDECREF(code)  # kept alive by the frame, and then by `codes`
            Py_XSETREF(frame, PyFrame_GetBack(frame))
        Py_XDECREF(frame)
        if not self.native.recording():  # walking frames may run a finalizer, which may have stopped the recording
            return 0
        cdef size_t known = self.stacks.size()
        cdef uint32_t number = self.stacks.intern(frames, count)
        for at in range(known, self.stacks.size()):
            self.codes.append(<object><PyObject*>self.stacks[at].frame.code)
        return number

    cpdef Block try_allocate(self, Py_ssize_t nbytes, uint64_t queue=0, uint32_t pool_number=0, bint borrowed=False):
        if nbytes <= 0:
            raise ValueError(f"cannot allocate {nbytes} bytes: a block has at least 1")
        return self.wrap(self.native.try_allocate(nbytes, queue, self.current_stack(), pool_number, borrowed))

    @cython.binding(False)  # a plain method: 3 ns less for each call
    def allocate(self, Py_ssize_t nbytes, uint64_t queue=0):
        if self.has_pending_frees and <uint64_t>nbytes < kMaxRequest:  # larger requests always fail
            self._process_pending_frees(queue)
        cdef uint32_t pool_number = self._route(queue) if self.routed else 0
        cdef Block block = Pool.try_allocate(self, nbytes, queue, pool_number)
        return self._refill(nbytes, queue, pool_number) if block is None else block

    def repeat(self, list live, list pending, dict pools, const uint8_t[::1] action, const uint32_t[::1] slot,
               const uint64_t[::1] nbytes, const uint64_t[::1] queue, const uint32_t[::1] pool, Py_ssize_t at):
        cdef Py_ssize_t rows = action.shape[0], slots = len(live), place
        if not rows == slot.shape[0] == nbytes.shape[0] == queue.shape[0] == pool.shape[0] or len(pending) != slots:
            raise ValueError("columns of different lengths")
        cdef Record* record
        cdef uint32_t number
        while 0 <= at < rows and not self.has_pending_frees and not self.routed:
            place = slot[at]
            if place >= slots:
                raise IndexError(f"row {at} has the slot {place} of {slots}")
            if action[at] == kFreed:
                self.free_from(live, place)
            elif action[at] == kAllocated and 0 < nbytes[at] < kMaxRequest:
                number = 0
                if pool[at] != 0:
                    if pool[at] not in pools:
                        break
                    number = pools[pool[at]]
                record = self.native.try_allocate(nbytes[at], queue[at], self.current_stack(), number, False)
                if record is NULL:
                    break
                live[place] = self.wrap(record)
            elif action[at] == kRequested:
                pending[place] = live[place]
                live[place] = None
            elif action[at] == kDeferred:
                self.free_from(pending, place)
            else:
                break
            at += 1
        return at

    cdef int free_from(self, list blocks, Py_ssize_t place) except -1:
        cdef Block block = blocks[place]
        blocks[place] = None
        if block is not None and block.record is not NULL:
            block.pool.free(block)
        return 0

    def _refill(self, nbytes, queue, pool_number):
        raise MemoryError(f"the pool has no free block of {nbytes} bytes and cannot grow")

    def _defer(self): pass
    def _process_pending_frees(self, queue): pass
    def _route(self, queue): return 0
    def _annotation_id(self): return 0

    def set_policy(self, vector[uint64_t] divisions, uint64_t max_split, uint64_t max_non_split_rounding,
                   uint64_t large_segment, bint expandable, bint track_age, bint exact_segments,
                   uint64_t buffer_alignment=0, uint64_t heap_limit=0):
        self.native.set_policy(Policy(divisions, max_split, max_non_split_rounding, large_segment, expandable,
                                      track_age, exact_segments, buffer_alignment, heap_limit))

    # No larger request succeeds, and rounding up one near 2^64 would overflow.
    def block_size(self, uint64_t nbytes): return self.native.policy().block_size(min(nbytes, kMaxRequest))
    def segment_size(self, uint64_t nbytes): return self.native.policy().segment_for(min(nbytes, kMaxRequest))

    def adopt(self, uint64_t address, uint64_t nbytes, uint64_t queue, bint small, rank=None, uint32_t pool_number=0):
        cdef uint64_t native_rank = kNextRank if rank is None else <uint64_t>rank
        self.native.adopt(address, nbytes, queue, small, self.current_stack(), native_rank, pool_number)

    def adopt_and_allocate(self, uint64_t need, uint64_t address, uint64_t size, uint64_t queue,
                           uint32_t pool_number=0):
        return self.wrap(self.native.adopt_and_allocate(need, address, size, queue, self.current_stack(), pool_number))

    def evictable(self, bint small, uint32_t pool_number=0, bint expandable=False, bint parts=False):
        rows = self.native.evictable(small, pool_number, expandable, parts)
        return [(row.address, row.size, row.queue, row.age, row.expandable, row.freed_at) for row in rows]

    def evict(self, uint64_t address, uint64_t stack=0): return self.native.evict(address, self.stacks.number_of(stack))
    def owns(self, uint64_t address): return self.native.owns(address)
    def deferred(self): return [(row.serial, row.users, row.pool_number, row.queue) for row in self.native.deferred()]
    def acknowledge_deferred(self, uint64_t token): self.native.acknowledge_deferred(token)

    def complete_free(self, uint64_t token, uint64_t stack=0):
        return self.native.complete_free(token, self.stacks.number_of(stack))

    def adopt_expandable(self, uint64_t address, uint64_t nbytes, uint64_t page, uint64_t queue, bint small,
                         uint32_t pool_number=0):
        self.native.adopt_expandable(address, nbytes, page, queue, small, pool_number)

    def choose_pages(self, uint64_t nbytes, uint64_t queue, uint32_t pool_number=0):
        cdef PageRange pages = self.native.choose_pages(min(nbytes, kMaxRequest), queue, pool_number)
        return pages.address, pages.size

    def allocate_at(self, uint64_t address, uint64_t nbytes, uint64_t queue=kAnyQueue, uint32_t pool_number=0):
        return self.wrap(self.native.allocate_at(address, nbytes, queue, self.current_stack(), pool_number))

    def commit_done(self, uint64_t address, uint64_t nbytes):
        return self.wrap(self.native.commit_done(address, nbytes, self.current_stack()))

    def idle_pages(self, bint small, uint32_t pool_number=0):
        return [(pages.address, pages.size) for pages in self.native.idle_pages(small, pool_number)]

    def page_transitions(self):
        return [(pages.address, pages.size, pages.decommitting) for pages in self.native.page_transitions()]

    def begin_commit(self, uint64_t address, uint64_t size): return self.native.begin_commit(PageRange(address, size))

    def begin_decommit(self, uint64_t address, uint64_t size):
        return self.native.begin_decommit(PageRange(address, size))

    def decommit_done(self, uint64_t address, uint64_t stack=0):
        return self.native.decommit_done(address, self.stacks.number_of(stack))

    def rollback(self, uint64_t address): self.native.rollback(address)
    def evict_expandable(self, uint64_t address): return self.native.evict_expandable(address)

    def new_buffer(self, uint64_t nbytes, uint64_t queue, uint32_t pool_number=0):
        return self.wrap(self.native.new_buffer(nbytes, queue, self.current_stack(), pool_number))

    def best_fit_buffer(self, uint64_t nbytes, uint64_t queue, uint32_t pool_number=0):
        cdef BestFitBuffer found = self.native.best_fit_buffer(min(nbytes, kMaxRequest), queue, pool_number)
        return found.address, found.size, found.has_gap

    def release_buffer(self, uint64_t address, uint64_t nbytes): return self.native.release_buffer(address, nbytes)

    def checkpoint(self, uint32_t pool_number): return self.native.checkpoint(pool_number)

    def restore(self, uint32_t pool_number, vector[vector[SavedBlock]] saved):
        cdef uint32_t stack = self.current_stack()
        cdef Restored done = self.native.restore(pool_number, saved, stack, stack if self.frees else 0)
        for moved in done.moved:  # before any Python object is created, which may run finalizers
            (<Block>moved.owner).record = moved.block
        if done.pending:
            self._defer()
        return done.unowned

    def live_addresses(self, uint32_t pool_number): return self.native.live_addresses(pool_number)

    def claim(self, uint64_t address):
        cdef Record* record = self.native.live_at(address)
        if record is not NULL and record.owner is not NULL:
            (<Block>record.owner).record = NULL
        return self.wrap(record)

    def create_pool(self, uint32_t pool_number, bint splits=True, bint waits=False):
        self.native.create_pool(pool_number, splits, waits)

    def remove_pool(self, uint32_t pool_number): return self.native.remove_pool(pool_number)
    def pools_with_segments(self): return self.native.pools_with_segments()
    def free_bytes(self, uint32_t pool_number): return self.native.free_bytes(pool_number)
    def reserved_by(self, uint32_t pool_number): return self.native.reserved_by(pool_number)

    def current(self, unsigned metric, unsigned kind=0): return self.native.count(metric, kind).current
    def peak(self, unsigned metric, unsigned kind=0): return self.native.count(metric, kind).peak
    def counts(self): return self.native.counts()
    def oversize(self): return self.native.oversize()
    def begin_meter(self): return self.native.begin_meter()
    def meter(self, uint64_t number, bint end=False): return self.native.meter(number, end)
    def reset_peaks(self): self.native.reset_peaks()
    def reset_accumulated(self): self.native.reset_accumulated()
    @property
    def recording(self): return self.native.recording()

    def check_invariants(self):
        cdef const char* invariant = self.native.check_invariants()
        return None if invariant is NULL else invariant.decode()

    def record_history(self, size_t max_entries, size_t depth=64, bint stacks=True, bint frees=False, uint32_t skip=0,
                       bint keep=False, str outside=None):
        cdef list codes = [], _before = self.codes  # created first, as in `tables`; kept alive
        keep = keep and max_entries and self.native.recording()
        self.native.record_history(max_entries, stacks, skip, keep)
        if not keep:
            self.native.compact_stacks(&self.stacks)
            self.codes = codes
            codes.extend([<object><PyObject*>self.stacks[at].frame.code for at in range(1, self.stacks.size())])
        self.depth, self.frees, self.folder = min(depth, <size_t>kMaxDepth), frees, outside

    def caller_stack(self, bint frees):
        cdef uint32_t number = self.current_stack()  # also sets the note of the entries that follow
        return 0 if frees and not self.frees else self.stacks.handle(number)

    def record_oom(self, uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t pool_number=0):
        self.native.record_oom(nbytes, queue, free, self.current_stack(), pool_number)

    def record_snapshot_event(self, uint32_t pool_number=0, uint64_t nbytes=0):
        if self.annotating:
            self.native.set_note(self._annotation_id())
        self.native.record_snapshot_event(pool_number, nbytes)

    def record_annotation(self, Block block not None):
        self.native.record_annotation(block.live_record(), self.current_stack())

    def tables(self, bint trace=True):
        cdef uint64_t lost = 0
        cdef list nodes = []  # created first: creating a list may run finalizers, which may allocate blocks
        cdef Rows rows = rows_of(self.native)
        cdef vector[StackNode] native_nodes = self.stacks.nodes()
        cdef vector[Entry] history
        cdef list _codes = self.codes  # kept alive: the loop below may run a finalizer that ends the recording
        if trace:
            history = self.native.history(&lost)
        for node in native_nodes:
            code = <object><PyObject*>node.frame.code
            line = PyCode_Addr2Line(<PyCodeObject*>node.frame.code, node.frame.offset)
            nodes.append((node.parent, code.co_filename, code.co_qualname, max(line, 0)))
        return (
            PyBytes_FromStringAndSize(<char*>rows.segments.data(), rows.segments.size() * sizeof(SegmentRow)),
            PyBytes_FromStringAndSize(<char*>rows.blocks.data(), rows.blocks.size() * sizeof(BlockRow)),
            PyBytes_FromStringAndSize(<char*>history.data(), history.size() * sizeof(Entry)),
            lost, nodes,
        )


@cython.boundscheck(True)  # comparing keys, and a garbage collection, may run code that shortens a list
def make_dicts(dict template not None, list keys not None, list columns not None, bint leaves):
    cdef Py_ssize_t row, at, count = len(columns), length
    cdef dict filled
    cdef list column, rows = []
    if count == 0 or count != len(keys):
        raise ValueError(f"{len(keys)} keys for {count} columns: give one for each column, and at least one column")
    length = len(<list?>columns[0])
    for at in range(count):
        column = <list?>columns[at]
        if len(column) != length:
            raise ValueError(f"columns of {length} and {len(column)} rows: give columns of equal length")
    for row in range(length):
        filled = PyDict_Copy(template)
        for at in range(count):
            column = <list?>columns[at]
            filled[keys[at]] = column[row]
        if leaves:
            PyObject_GC_UnTrack(filled)
        rows.append(filled)
    return rows


cdef class Exporter:
    def _export(self): raise BufferError(f"{type(self).__name__} cannot export its memory")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyObject_GetBuffer(self._export(), buffer, flags)  # the array becomes the buffer's owner and releases it


include "_arena_meter.pxi"
include "_numpy_hook.pxi"
include "_queue.pxi"
