# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""The native core's face; _core.pyi says what each name does, _core.pxd declares what it stands on.

A pool's lock is taken with the interpreter's lock held, which is safe because the pool calls nobody. Whatever may block
(waiting for a queue, closing one) lets the interpreter's lock go first.
"""

cimport cython

QUANTUM = kQuantum
METRICS = tuple([name.decode() for name in metric_names()])


@cython.final
@cython.freelist(64)
@cython.no_gc  # it refers to its pool only, and a pool never to a block
cdef class Block:
    cdef Record* record  # null once given back
    cdef readonly Pool pool
    cdef readonly uint64_t address

    def __init__(self): raise TypeError("a Block comes from a pool's take() or allocate()")

    def __dealloc__(self):
        if self.record is not NULL:
            self.pool.give(self.record)

    def free(self):
        cdef Record* record = self.record
        self.record = NULL
        if record is not NULL:
            self.pool.give(record)

    def used_on(self, uint64_t queue): self.pool.native.use(self.alive(), queue)

    cdef Record* alive(self) except NULL:
        if self.record is NULL:
            raise ValueError(f"the block at {self.address:#x} was given back already")
        return self.record

    @property
    def nbytes(self): return self.alive().requested
    @property
    def size(self): return self.alive().size
    @property
    def queue(self): return self.alive().segment.queue
    @property
    def freed(self): return self.record is NULL

    def __repr__(self):
        state = "given back" if self.record is NULL else f"{self.record.requested} bytes"
        return f"<Block at {self.address:#x}, {state}>"


cdef class Pool:
    cdef NativePool native
    cdef Stacks stacks  # empty unless it is recording
    cdef list codes  # of stack 1, 2, ...: keeps what the stacks name alive
    cdef size_t depth
    cdef bint frees  # whether a free has a stack of its own
    cdef public bint waiting  # blocks given back wait for other queues
    cdef public bint routed  # some allocations go to homes of their own
    cdef public bint noting  # entries of the history say something more, which `_note` knows
    cdef object __weakref__

    cdef Block wrap(self, Record* record):
        if record is NULL:
            return None
        cdef Block block = Block.__new__(Block)
        block.record, block.pool, block.address = record, self, record.address
        return block

    cdef void give(self, Record* record) noexcept:
        cdef uint32_t stack = 0
        if self.frees or self.noting:
            try:
                stack = self.here()
            except BaseException as failure:  # a signal's handler, or no memory: the block goes back all the same
                PyErr_SetObject(type(failure), failure)
                PyErr_WriteUnraisable(None)
        if self.native.give(record, stack if self.frees else 0):  # other queues use it
            self._defer()  # what it raises goes to sys.unraisablehook: a destructor has nobody else to tell

    cdef uint32_t here(self):
        """The number of the current Python stack; 0 while nothing is recorded."""
        if not self.native.recording():
            return 0
        if self.noting:
            self.native.set_note(self._note())
        if self.depth == 0:
            return 0
        cdef Place[kDeepest] places
        cdef size_t count = 0, at
        cdef PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get())
        cdef PyCodeObject* code
        while frame is not NULL and count < self.depth:
            code = PyFrame_GetCode(frame)
            places[count].code = <uintptr_t>code
            places[count].offset = PyFrame_GetLasti(frame)
            count += 1
            Py_XDECREF(code)  # the frame keeps it, and `codes` will
            Py_XSETREF(frame, PyFrame_GetBack(frame))
        Py_XDECREF(frame)
        if not self.native.recording():  # to walk frames may collect garbage, whose finalizer may have stopped it
            return 0
        cdef uint32_t number = self.stacks.intern(places, count)
        for at in range(1 + len(self.codes), self.stacks.size()):
            self.codes.append(<object><PyObject*>self.stacks[at].place.code)
        return number

    cpdef Block take(self, Py_ssize_t nbytes, uint64_t queue=0, uint32_t home=0, bint borrowed=False):
        if nbytes <= 0:
            raise ValueError(f"cannot take {nbytes} bytes: a block has at least 1")
        return self.wrap(self.native.take(nbytes, queue, self.here(), home, borrowed))

    def allocate(self, Py_ssize_t nbytes, uint64_t queue=0):
        if self.waiting and <uint64_t>nbytes < kMost:  # which is refused at once
            self._settle(queue)
        cdef uint32_t home = self._home(queue) if self.routed else 0
        cdef Block block = self.take(nbytes, queue, home)
        return self._refill(nbytes, queue, home) if block is None else block

    def _refill(self, nbytes, queue, home):
        raise MemoryError(f"the pool has no free block of {nbytes} bytes and nobody to ask for more")

    def _defer(self): pass
    def _settle(self, queue): pass
    def _home(self, queue): return 0
    def _note(self): return 0

    def set_policy(self, vector[uint64_t] divisions, uint64_t max_split, uint64_t max_non_split_rounding,
                   uint64_t large_segment, bint growing, bint ages, bint fine, uint64_t buffers=0, uint64_t limit=0):
        self.native.set_policy(Policy(divisions, max_split, max_non_split_rounding, large_segment, growing, ages, fine,
                                      buffers, limit))

    def rounded(self, uint64_t nbytes): return self.native.policy().block_size(nbytes)
    def segment_size(self, uint64_t nbytes): return self.native.policy().segment_for(nbytes)

    def adopt(self, uint64_t address, uint64_t nbytes, uint64_t queue, bint small, rank=None, uint32_t home=0):
        cdef uint64_t place = kArrival if rank is None else <uint64_t>rank
        self.native.adopt(address, nbytes, queue, small, self.here(), place, home)

    def adopt_for(self, uint64_t wanted, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t home=0):
        return self.wrap(self.native.adopt_for(wanted, address, nbytes, queue, self.here(), home))

    def evictable(self, bint small, uint32_t home=0, bint growing=False, bint pieces=False):
        rows = self.native.evictable(small, home, growing, pieces)
        return [(row.address, row.size, row.queue, row.age, row.growing) for row in rows]

    def evict(self, uint64_t address): return self.native.evict(address)
    def owns(self, uint64_t address): return self.native.owns(address)
    def deferred(self): return [(row.serial, row.uses, row.home) for row in self.native.deferred()]
    def heard(self, uint64_t token): self.native.heard(token)
    def settle(self, uint64_t token): return self.native.settle(token)

    def adopt_space(self, uint64_t address, uint64_t nbytes, uint64_t page, uint64_t queue, bint small,
                    uint32_t home=0):
        self.native.adopt_space(address, nbytes, page, queue, small, self.here(), home)

    def room(self, uint64_t nbytes, uint64_t queue, uint32_t home=0):
        cdef Piece piece = self.native.room(nbytes, queue, home)
        return piece.address, piece.size

    def take_at(self, uint64_t address, uint64_t nbytes, uint64_t queue=kAnyQueue, uint32_t home=0):
        return self.wrap(self.native.take_at(address, nbytes, queue, self.here(), home))

    def came(self, uint64_t address, uint64_t nbytes):
        return self.wrap(self.native.came(address, nbytes, self.here()))

    def idle_pages(self, bint small, uint32_t home=0):
        return [(piece.address, piece.size) for piece in self.native.idle_pages(small, home)]

    def on_the_way(self): return [(piece.address, piece.size, piece.leaving) for piece in self.native.on_the_way()]
    def come(self, uint64_t address, uint64_t nbytes): return self.native.come(Piece(address, nbytes))
    def leave(self, uint64_t address, uint64_t nbytes): return self.native.leave(Piece(address, nbytes))
    def left(self, uint64_t address): return self.native.left(address)
    def stayed(self, uint64_t address): self.native.stayed(address)
    def evict_space(self, uint64_t address): return self.native.evict_space(address)

    def place(self, uint64_t nbytes, uint64_t queue, uint32_t home=0):
        return self.wrap(self.native.place(nbytes, queue, self.here(), home))

    def nearest(self, uint64_t nbytes, uint64_t queue, uint32_t home=0):
        cdef Nearest found = self.native.nearest(nbytes, queue, home)
        return found.address, found.size, found.room

    def release(self, uint64_t address, uint64_t nbytes): return self.native.release(address, nbytes)

    def make_home(self, uint32_t home, bint splits=True, bint waits=False): self.native.make_home(home, splits, waits)
    def drop_home(self, uint32_t home): return self.native.drop_home(home)
    def idle_in(self, uint32_t home): return self.native.idle_in(home)
    def reserved_by(self, uint32_t home): return self.native.reserved_by(home)

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

    def broken(self):
        cdef const char* rule = self.native.broken()
        return None if rule is NULL else rule.decode()

    def record(self, size_t max_entries, size_t depth=64, bint stacks=True, bint frees=False, uint32_t skip=0,
               bint keep=False):
        keep = keep and max_entries and self.native.recording()
        self.native.record(max_entries, stacks, skip, keep)
        if not keep:
            self.stacks, self.codes = Stacks(), []
        self.depth, self.frees = min(depth, <size_t>kDeepest), frees

    def note_oom(self, uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t home=0):
        self.native.note_oom(nbytes, queue, free, self.here(), home)

    def note_look(self): self.native.note_look()
    def note_block(self, Block block not None): self.native.note_block(block.alive(), self.here())

    def tables(self, bint trace=True):
        """Segments, blocks, history, its lost entries, and each stack's caller, file, name and line: one moment's."""
        cdef uint64_t lost = 0
        cdef list places = []  # first: to make a list may collect garbage, whose finalizers allocate
        cdef Rows rows = rows_of(self.native)
        cdef vector[StackNode] nodes = self.stacks.nodes()
        cdef vector[Entry] history
        cdef list _held = self.codes  # as what follows may collect garbage that ends the recording
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


def dicts(dict template, list keys, list columns, bint leaves):
    """A copy of the template for each row of the columns, which are lists and stand under these keys."""
    cdef Py_ssize_t row, at
    cdef dict made
    cdef list rows = [], column
    for row in range(len(columns[0])):
        made = PyDict_Copy(template)
        for at in range(len(columns)):
            column = columns[at]
            made[keys[at]] = column[row]
        if leaves:
            PyObject_GC_UnTrack(made)
        rows.append(made)
    return rows


cdef class Exporter:
    """Lends the buffer of the NumPy array that `_export` gives; a class of Python's own could not before 3.12."""

    def _export(self): raise BufferError(f"{type(self).__name__} has no memory to lend")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyObject_GetBuffer(self._export(), buffer, flags)  # which makes the array its owner: that one releases it


include "_numpy_hook.pxi"
include "_queue.pxi"
