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

    def __init__(self):
        raise TypeError("a Block comes from a pool's take() or allocate()")

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
    cdef public bint waiting  # blocks given back wait for other queues
    cdef object __weakref__

    cdef void give(self, Record* record) noexcept:
        if self.native.give(record):  # other queues use it
            self._defer()  # what it raises goes to sys.unraisablehook: a destructor has nobody else to tell

    cdef uint32_t here(self):
        """The number of the current Python stack; 0 while nothing is recorded."""
        if not self.native.recording():
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

    cpdef Block take(self, Py_ssize_t nbytes, uint64_t queue=0):
        if nbytes <= 0:
            raise ValueError(f"cannot take {nbytes} bytes: a block has at least 1")
        cdef Record* record = self.native.take(nbytes, queue, self.here())
        if record is NULL:
            return None
        cdef Block block = Block.__new__(Block)
        block.record, block.pool, block.address = record, self, record.address
        return block

    def allocate(self, Py_ssize_t nbytes, uint64_t queue=0):
        if self.waiting:
            self._settle()
        cdef Block block = self.take(nbytes, queue)
        return self._refill(nbytes, queue) if block is None else block

    def _refill(self, nbytes, queue):
        raise MemoryError(f"the pool has no free block of {nbytes} bytes and nobody to ask for more")

    def _defer(self): pass
    def _settle(self): pass

    def adopt(self, uint64_t address, uint64_t nbytes, uint64_t queue, bint small, rank=None):
        self.native.adopt(address, nbytes, queue, small, self.here(), kArrival if rank is None else <uint64_t>rank)

    def evictable(self): return self.native.evictable()
    def evict(self, uint64_t address): return self.native.evict(address)
    def owns(self, uint64_t address): return self.native.owns(address)
    def deferred(self): return self.native.deferred()
    def settle(self, uint64_t token): return self.native.settle(token)
    @staticmethod
    def rounded(uint64_t nbytes): return block_size(nbytes)
    @staticmethod
    def segment_size(uint64_t nbytes, bint fine=False): return segment_for(nbytes, fine)

    def largest_free(self, queue=None, small=None):
        if queue is None:
            return self.native.largest_free()
        if small is None:
            return self.native.largest_free(<uint64_t>queue)
        return self.native.largest_free(<uint64_t>queue, <bint>small)

    def current(self, unsigned metric, unsigned kind=0): return self.native.count(metric, kind).current
    def peak(self, unsigned metric, unsigned kind=0): return self.native.count(metric, kind).peak
    def counts(self): return self.native.counts()
    def reset_peaks(self): self.native.reset_peaks()
    def reset_accumulated(self): self.native.reset_accumulated()
    @property
    def recording(self): return self.native.recording()

    def broken(self):
        cdef const char* rule = self.native.broken()
        return None if rule is NULL else rule.decode()

    def record(self, size_t max_entries, size_t depth=64):
        self.native.record(max_entries)
        self.stacks = Stacks()
        self.codes = []
        self.depth = min(depth, <size_t>kDeepest)

    def note_oom(self, uint64_t nbytes, uint64_t queue, uint64_t free):
        self.native.note_oom(nbytes, queue, free, self.here())

    def tables(self, bint trace=True):
        """Segments, blocks, history, its lost entries, and each stack's caller, file, name and line: one moment's."""
        cdef uint64_t lost = 0
        cdef vector[SegmentRow] segments = segment_rows(self.native)
        cdef vector[BlockRow] blocks = block_rows(self.native)
        cdef vector[StackNode] nodes = self.stacks.nodes()
        cdef vector[Entry] history
        cdef list _held = self.codes, places = []  # held, as what follows may collect garbage that ends the recording
        if trace:
            history = self.native.history(&lost)
        for node in nodes:
            code = <object><PyObject*>node.place.code
            line = PyCode_Addr2Line(<PyCodeObject*>node.place.code, node.place.offset)
            places.append((node.parent, code.co_filename, code.co_qualname, max(line, 0)))
        return (
            PyBytes_FromStringAndSize(<char*>segments.data(), segments.size() * sizeof(SegmentRow)),
            PyBytes_FromStringAndSize(<char*>blocks.data(), blocks.size() * sizeof(BlockRow)),
            PyBytes_FromStringAndSize(<char*>history.data(), history.size() * sizeof(Entry)),
            lost,
            places,
        )


cdef class Exporter:
    """Lends the buffer of the NumPy array that `_export` gives; a class of Python's own could not before 3.12."""

    def _export(self):
        raise BufferError(f"{type(self).__name__} has no memory to lend")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyObject_GetBuffer(self._export(), buffer, flags)  # which makes the array its owner: that one releases it


include "_numpy_hook.pxi"
include "_queue.pxi"
