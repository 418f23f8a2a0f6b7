# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""The native core's face; _core.pyi says what each name does.

A pool's lock is taken with the interpreter's lock held, which is safe because the pool calls nobody. Whatever may block
(waiting for a queue, closing one) lets the interpreter's lock go first.
"""

cimport cython
from cpython.buffer cimport PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_WriteUnraisable
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcpy, memset
from libcpp.memory cimport unique_ptr

QUANTUM = kQuantum
METRICS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes",
)

cdef extern from *:
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject* PyEval_GetFrame()
    PyFrameObject* PyFrame_GetBack(PyFrameObject*)
    ctypedef struct PyCodeObject:
        pass
    PyCodeObject* PyFrame_GetCode(PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    int PyCode_Addr2Line(PyCodeObject*, int)
    void Py_XDECREF "Py_XDECREF"(void*)
    void Py_XINCREF "Py_XINCREF"(void*)

cdef enum:
    DEEPEST = 256


@cython.final
@cython.freelist(64)
@cython.no_gc  # it refers to its pool only, and a pool never to a block
cdef class Block:
    cdef Record* record  # null once given back
    cdef Pool owner
    cdef uint64_t start

    def __init__(self):
        raise TypeError("a Block comes from a pool's take() or allocate()")

    def __dealloc__(self):
        if self.record is not NULL:
            self.owner.give(self.record)

    def free(self):
        cdef Record* record = self.record
        self.record = NULL
        if record is not NULL:
            self.owner.give(record)

    def used_on(self, uint64_t queue):
        self.owner.native.use(self.alive(), queue)

    cdef Record* alive(self) except NULL:
        if self.record is NULL:
            raise ValueError(f"the block at {self.start:#x} was given back already")
        return self.record

    @property
    def address(self): return self.start

    @property
    def nbytes(self): return self.alive().requested

    @property
    def size(self): return self.alive().size

    @property
    def queue(self): return self.alive().segment.queue

    @property
    def pool(self): return self.owner

    @property
    def freed(self): return self.record is NULL

    def __repr__(self):
        if self.record is NULL:
            return f"<Block at {self.start:#x}, given back>"
        return f"<Block at {self.start:#x}, {self.record.requested} bytes>"


cdef class Pool:
    cdef NativePool native
    cdef unique_ptr[Stacks] stacks  # there while recording
    cdef list codes  # keeps what the stacks name alive
    cdef size_t depth
    cdef bint frees  # whether a free has a stack of its own
    cdef public bint waiting  # blocks given back wait for other queues
    cdef public bint routed  # some allocations go to homes of their own
    cdef public bint noting  # what is recorded says something more, which `_note` knows
    cdef object __weakref__

    cdef Block wrap(self, Record* record):
        if record is NULL:
            return None
        cdef Block block = Block.__new__(Block)
        block.record = record
        block.owner = self
        block.start = record.address
        return block

    cdef void give(self, Record* record) noexcept:
        cdef uint32_t stack = 0
        if self.frees or self.noting:
            stack = self.here()
        if self.native.give(record, stack if self.frees else 0):  # other queues use it
            self._defer()  # what it raises goes to sys.unraisablehook: a destructor has nobody else to tell

    cdef uint32_t here(self):
        """The number of the current Python stack; 0 while nothing is recorded."""
        if not self.stacks:
            return 0
        if self.noting:
            self.native.set_note(self._note())
        if self.depth == 0:
            return 0
        cdef Place[DEEPEST] places
        cdef size_t count = 0, known
        cdef PyFrameObject* frame = PyEval_GetFrame()
        cdef PyFrameObject* caller
        cdef PyCodeObject* code
        Py_XINCREF(frame)
        while frame is not NULL and count < self.depth:
            code = PyFrame_GetCode(frame)
            places[count].code = <uintptr_t>code
            places[count].offset = PyFrame_GetLasti(frame)
            count += 1
            Py_XDECREF(code)  # the frame keeps it, and `codes` will
            caller = PyFrame_GetBack(frame)
            Py_XDECREF(frame)
            frame = caller
        Py_XDECREF(frame)
        if not self.stacks:  # to walk frames may collect garbage, whose finalizer may have stopped the recording
            return 0
        known = self.stacks.get().size()
        cdef uint32_t number = self.stacks.get().intern(places, count)
        for known in range(known, self.stacks.get().size()):
            self.codes.append(<object><PyObject*>self.stacks.get()[0][known].place.code)
        return number

    cpdef Block take(self, Py_ssize_t nbytes, uint64_t queue=0, uint32_t home=0):
        if nbytes <= 0:
            raise ValueError(f"cannot take {nbytes} bytes: a block has at least 1")
        return self.wrap(self.native.take(nbytes, queue, self.here(), home))

    def allocate(self, Py_ssize_t nbytes, uint64_t queue=0):
        if self.waiting:
            self._settle(queue)
        cdef uint32_t home = self._home(queue) if self.routed else 0
        cdef Block block = self.take(nbytes, queue, home)
        return self._refill(nbytes, queue, home) if block is None else block

    def _home(self, queue):
        return 0

    def _refill(self, nbytes, queue, home):
        raise MemoryError(f"the pool has no free block of {nbytes} bytes and nobody to ask for more")

    def _defer(self):
        pass

    def _settle(self, queue):
        pass

    def deferred(self): return [(row.serial, row.uses, row.home) for row in self.native.deferred()]

    def settle(self, uint64_t token): return self.native.settle(token)

    def set_policy(self, divisions, max_split, uint64_t max_non_split_rounding, uint64_t large_segment, bint growing,
                   bint ages, bint fine):
        cdef Policy policy
        for slot in range(16):
            policy.divisions[slot] = divisions[slot]
        policy.divides = max(divisions) > 1
        policy.max_split = kUnlimited if max_split is None else <uint64_t>max_split
        policy.max_non_split_rounding, policy.large_segment = max_non_split_rounding, large_segment
        policy.growing, policy.ages, policy.fine = growing, ages, fine
        self.native.set_policy(policy)

    cdef int check_segment(self, uint64_t address, uint64_t nbytes) except -1:
        if address == 0 or address % kQuantum or nbytes == 0 or nbytes % kQuantum or address + nbytes < address:
            raise ValueError(f"a segment's address and size are multiples of {kQuantum}: {address:#x}, {nbytes}")
        if self.native.overlaps(address, nbytes):
            raise ValueError(f"a segment at {address:#x} of {nbytes} bytes would overlap another")
        return 0

    def adopt(self, uint64_t address, uint64_t nbytes, uint64_t queue, bint small, rank=None, uint32_t home=0):
        self.check_segment(address, nbytes)
        cdef uint64_t place = kArrival if rank is None else <uint64_t>rank
        self.native.adopt(address, nbytes, queue, small, self.here(), place, home)

    def adopt_for(self, uint64_t wanted, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t home=0):
        self.check_segment(address, nbytes)
        return self.wrap(self.native.adopt_for(wanted, address, nbytes, queue, self.here(), home))

    def evictable(self, bint small, uint32_t home=0, bint growing=False):
        rows = self.native.evictable(small, home, growing)
        return [(row.address, row.size, row.queue, row.age, row.growing) for row in rows]

    def evict(self, uint64_t address): return self.native.evict(address)

    def adopt_space(self, uint64_t address, uint64_t nbytes, uint64_t page, uint64_t queue, bint small,
                    uint32_t home=0):
        self.check_segment(address, nbytes)
        self.native.adopt_space(address, nbytes, page, queue, small, self.here(), home)

    def room(self, uint64_t nbytes, uint64_t queue, uint32_t home=0):
        cdef Piece piece = self.native.room(nbytes, queue, home)
        return piece.address, piece.size

    def take_at(self, uint64_t address, uint64_t nbytes):
        return self.wrap(self.native.take_at(address, nbytes, self.here()))

    def came(self, uint64_t address, uint64_t nbytes):
        return self.wrap(self.native.came(address, nbytes, self.here()))

    def idle_pages(self, bint small, uint32_t home=0):
        return [(piece.address, piece.size) for piece in self.native.idle_pages(small, home)]

    def leave(self, uint64_t address, uint64_t nbytes):
        cdef Piece piece
        piece.address, piece.size = address, nbytes
        return self.native.leave(piece)

    def left(self, uint64_t address): return self.native.left(address)

    def stayed(self, uint64_t address): self.native.stayed(address)

    def evict_space(self, uint64_t address): return self.native.evict_space(address)

    def make_home(self, uint32_t number, bint splits=True): self.native.make_home(number, splits)

    def drop_home(self, uint32_t number): return self.native.drop_home(number)

    def idle_in(self, uint32_t home): return self.native.idle_in(home)

    def rounded(self, uint64_t nbytes): return self.native.policy().block_size(nbytes)

    def segment_size(self, uint64_t nbytes):
        cdef Policy policy = self.native.policy()
        cdef uint64_t size = policy.block_size(nbytes)
        return policy.segment_size(size), is_small(size)

    def owns(self, uint64_t address): return self.native.owns(address)

    def largest_free(self, queue=None, small=None):
        if queue is None:
            return self.native.largest_free()
        if small is None:
            return self.native.largest_free(<uint64_t>queue)
        return self.native.largest_free(<uint64_t>queue, <bint>small)

    cdef Count count(self, unsigned metric, unsigned kind):
        if metric >= <unsigned>kMetrics or kind >= <unsigned>kKinds:
            raise IndexError(f"no metric {metric} of kind {kind}: there are {kMetrics} of {kKinds}")
        return self.native.count(<Metric>metric, <Kind>kind)

    def current(self, unsigned metric, unsigned kind=0): return self.count(metric, kind).current

    def peak(self, unsigned metric, unsigned kind=0): return self.count(metric, kind).peak

    def counts(self):
        cdef list numbers = []
        for metric in range(<unsigned>kMetrics):
            for kind in range(<unsigned>kKinds):
                numbers += moves(self.count(metric, kind))
        return numbers

    def oversize(self): return moves(self.native.oversize(False)) + moves(self.native.oversize(True))

    def reserved_by(self, uint32_t home):
        cdef list numbers = []
        for kind in range(<unsigned>kKinds):
            numbers += moves(self.native.reserved_by(home, <Kind>kind))
        return numbers

    def reset_peaks(self): self.native.reset_peaks()

    def reset_accumulated(self): self.native.reset_accumulated()

    def broken(self):
        cdef const char* rule = self.native.broken()
        return None if rule is NULL else rule.decode()

    def record(self, size_t max_entries, size_t depth=64, bint stacks=True, bint frees=False, uint32_t skip=0,
               bint keep=False):
        keep = keep and self.stacks.get() is not NULL and max_entries
        self.native.record(max_entries, stacks, skip, keep)
        if not keep:
            self.stacks.reset(new Stacks() if max_entries else NULL)
            self.codes = []
        self.depth = min(depth, <size_t>DEEPEST)
        self.frees = frees

    def _note(self):
        return 0

    def note_block(self, Block block not None):
        cdef uint32_t stack = self.here()
        self.native.note_block(block.alive(), stack)

    def note_look(self): self.native.note_look()

    @property
    def recording(self): return self.native.recording()

    def note_oom(self, uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t home=0):
        self.native.note_oom(nbytes, queue, free, self.here(), home)

    def tables(self, bint trace=True):
        """Segments, blocks, history, its lost entries, and each stack's caller, file, name and line: one moment's."""
        cdef uint64_t lost = 0
        cdef Rows rows = rows_of(self.native)
        cdef vector[Entry] history
        cdef vector[StackNode] nodes
        cdef StackNode node
        cdef size_t i
        cdef list _held = self.codes, places = []  # held, as what follows may collect garbage that ends the recording
        if self.stacks:
            for i in range(1, self.stacks.get().size()):
                nodes.push_back(self.stacks.get()[0][i])
        if trace:
            history = self.native.history(&lost)
        for node in nodes:
            code = <object><PyObject*>node.place.code
            line = PyCode_Addr2Line(<PyCodeObject*>node.place.code, node.place.offset)
            places.append((node.parent, code.co_filename, code.co_qualname, max(line, 0)))
        return (
            PyBytes_FromStringAndSize(<char*>rows.segments.data(), rows.segments.size() * sizeof(SegmentRow)),
            PyBytes_FromStringAndSize(<char*>rows.blocks.data(), rows.blocks.size() * sizeof(BlockRow)),
            PyBytes_FromStringAndSize(<char*>history.data(), history.size() * sizeof(Entry)),
            lost,
            places,
        )


cdef list moves(Count count): return [count.current, count.peak, count.allocated, count.freed]


cdef class Exporter:
    """Lends the buffer of the NumPy array that `_export` gives; a class of Python's own could not before 3.12."""

    def _export(self):
        raise BufferError(f"{type(self).__name__} has no memory to lend")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyObject_GetBuffer(self._export(), buffer, flags)

    def __releasebuffer__(self, Py_buffer* buffer):
        pass  # the array, which the buffer names as its owner, does that


include "_numpy_hook.pxi"
include "_queue.pxi"
