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
    cdef public bint waiting  # blocks given back wait for other queues
    cdef object __weakref__

    cdef Block wrap(self, Record* record):
        cdef Block block = Block.__new__(Block)
        block.record = record
        block.owner = self
        block.start = record.address
        return block

    cdef void give(self, Record* record) noexcept:
        if self.native.give(record):  # other queues use it
            self._defer()  # what it raises goes to sys.unraisablehook: a destructor has nobody else to tell

    cdef uint32_t here(self):
        """The number of the current Python stack; 0 while nothing is recorded."""
        if not self.stacks:
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

    cpdef Block take(self, Py_ssize_t nbytes, uint64_t queue=0):
        if nbytes <= 0:
            raise ValueError(f"cannot take {nbytes} bytes: a block has at least 1")
        cdef Record* record = self.native.take(nbytes, queue, self.here())
        return None if record is NULL else self.wrap(record)

    def allocate(self, Py_ssize_t nbytes, uint64_t queue=0):
        if self.waiting:
            self._settle()
        cdef Block block = self.take(nbytes, queue)
        return self._refill(nbytes, queue) if block is None else block

    def _refill(self, nbytes, queue):
        raise MemoryError(f"the pool has no free block of {nbytes} bytes and nobody to ask for more")

    def _defer(self):
        pass

    def _settle(self):
        pass

    def deferred(self): return self.native.deferred()

    def settle(self, uint64_t token): return self.native.settle(token)

    def adopt(self, uint64_t address, uint64_t nbytes, uint64_t queue, bint small, rank=None):
        if address == 0 or address % kQuantum or nbytes == 0 or nbytes % kQuantum or address + nbytes < address:
            raise ValueError(f"a segment's address and size are multiples of {kQuantum}: {address:#x}, {nbytes}")
        if self.native.overlaps(address, nbytes):
            raise ValueError(f"a segment at {address:#x} of {nbytes} bytes would overlap another")
        self.native.adopt(address, nbytes, queue, small, self.here(), kArrival if rank is None else <uint64_t>rank)

    def evictable(self):
        return self.native.evictable()

    def evict(self, uint64_t address): return self.native.evict(address)

    @staticmethod
    def rounded(uint64_t nbytes): return block_size(nbytes)

    @staticmethod
    def segment_size(uint64_t nbytes, bint fine=False):
        cdef uint64_t size = block_size(nbytes)
        return segment_size(size, fine), is_small(size)

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
        cdef Count count
        cdef list numbers = []
        for metric in range(<unsigned>kMetrics):
            for kind in range(<unsigned>kKinds):
                count = self.count(metric, kind)
                numbers += (count.current, count.peak, count.allocated, count.freed)
        return numbers

    def reset_peaks(self): self.native.reset_peaks()

    def reset_accumulated(self): self.native.reset_accumulated()

    def broken(self):
        cdef const char* rule = self.native.broken()
        return None if rule is NULL else rule.decode()

    def record(self, size_t max_entries, size_t depth=64):
        self.native.record(max_entries)
        self.stacks.reset(new Stacks() if max_entries else NULL)
        self.codes = []
        self.depth = min(depth, <size_t>DEEPEST)

    @property
    def recording(self): return self.native.recording()

    def note_oom(self, uint64_t nbytes, uint64_t queue, uint64_t free):
        self.native.note_oom(nbytes, queue, free, self.here())

    def tables(self, bint trace=True):
        """Segments, blocks, history, its lost entries, and each stack's caller, file, name and line: one moment's."""
        cdef uint64_t lost = 0
        cdef vector[SegmentRow] segments = segment_rows(self.native)
        cdef vector[BlockRow] blocks = block_rows(self.native)
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
        PyObject_GetBuffer(self._export(), buffer, flags)

    def __releasebuffer__(self, Py_buffer* buffer):
        pass  # the array, which the buffer names as its owner, does that


include "_numpy_hook.pxi"
include "_queue.pxi"
