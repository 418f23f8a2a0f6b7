# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""The recorder's per-operation path; documented in _entries.pyi.

An entry is a row of numbers and references that the garbage collector does not track. The GIL guards the ring: no code
that may run Python separates changes of the ring that belong together.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr

import sys
import time

from forebay.backends.plugins import contract_checks
from forebay.runtime.base import capture_state
from forebay.runtime.allocator import metrics as _metrics

OPERATION, MOMENT, WAITED, MEMORY, RANGE = range(5)
UNKNOWN = object()

# Bound at import; other globals are looked up on each use.
cdef object getframe = sys._getframe, clock = time.perf_counter_ns, captures = capture_state
cdef object failures = contract_checks.FAILURES
cdef int operation = OPERATION, waited = WAITED
cdef object allocated_bytes = _metrics.ALLOCATED_BYTES, reserved_bytes = _metrics.RESERVED_BYTES

cdef extern from *:
    """
    static inline PyObject* frame_code(PyObject* frame) { return (PyObject*)PyFrame_GetCode((PyFrameObject*)frame); }
    static inline int frame_offset(PyObject* frame) { return PyFrame_GetLasti((PyFrameObject*)frame); }
    static inline PyObject* caller_of(PyObject* frame) { return (PyObject*)PyFrame_GetBack((PyFrameObject*)frame); }
    static inline PyObject* file_of(PyObject* code) {
        PyObject* file = ((PyCodeObject*)code)->co_filename;
        Py_INCREF(file);
        return file;
    }
    """
    object frame_code(object frame)
    int frame_offset(object frame)
    PyObject* caller_of(object frame)  # a new reference, or NULL
    object file_of(object code)
    void Py_DECREF(PyObject*)

cdef extern from "base/ring.hpp" namespace "forebay" nogil:
    cppclass Ring[T]:
        Ring(size_t most) except +
        T& next(cbool* full)
        size_t size()
        uint64_t lost()
        const T& operator[](size_t age)

ctypedef PyObject* Ref  # owned by the row

cdef struct Row:
    int32_t entry_type, offset, track, other
    int64_t thread, begin_time, end_time, number
    Ref code, what, name, begin_mark, end_mark


cdef class MemoryCounters:
    cdef object current
    cdef int64_t allocated, reserved

    def __init__(self, current):
        self.current, self.allocated, self.reserved = current, -1, -1


cdef class QueueTrack:
    cdef readonly int32_t key
    cdef readonly object queue
    cdef public object mark, last
    cdef public bint timed, logs
    cdef MemoryCounters counters

    def __init__(self, int32_t key, queue, MemoryCounters counters):
        self.key, self.queue, self.counters = key, queue, counters

    def observe_ticks(self): pass


@cython.final
@cython.freelist(8)
cdef class OperationStart:
    cdef QueueTrack track
    cdef int64_t begin_time
    cdef object mark

    def __init__(self): raise TypeError("created by Entries.queueing() only")


cdef class Entries:
    cdef unique_ptr[Ring[Row]] ring
    cdef object thread_state, is_internal
    cdef set internal, external  # source files
    cdef readonly dict queue_tracks
    cdef bint wait_until_completed
    cdef readonly bint closed
    cdef uint64_t resets

    def __cinit__(self):
        self.internal, self.external, self.queue_tracks, self.closed = set(), set(), {}, True
        self.ring.reset(new Ring[Row](1))

    def __init__(self, size_t most, thread_state, is_internal, bint wait_until_completed=False):
        self.reset_ring(most)
        self.thread_state, self.is_internal = thread_state, is_internal
        self.wait_until_completed, self.closed = wait_until_completed, False

    def __dealloc__(self): release_ring(self.ring.get())

    def queueing(self, queue):
        cdef OperationStart begun = OperationStart.__new__(OperationStart)
        cdef QueueTrack track = self.track_of(queue)
        begun.track, begun.begin_time = track, clock()
        if captures.active and captures.capture_of(queue) is not None:
            return begun
        if not track.logs and track.last is not None and is_busy(track):
            begun.mark = track.last
        else:
            begun.mark = take_mark(track)
        return begun

    def queued(self, queue, OperationStart begun not None, what, name, int64_t nbytes=0, other=None):
        cdef QueueTrack track = begun.track, other_track = None
        if track is None:
            raise TypeError("the operation was not begun by queueing()")
        begin, end = begun.mark, None
        if captures.active and captures.capture_of(queue) is not None:
            begin = None  # the capture may have begun with this operation, a wait
        if begin is not None:
            end = take_mark(track)
        known = end is not None and end is not UNKNOWN
        if known and (not track.logs or track.last is None or track.last < end):
            track.last = end
        if other is not None:
            other_track = self.track_of(other)
        other_key = -1 if other_track is None else other_track.key
        self.add_row(operation, begun.begin_time, what, name, nbytes, track.key, other_key, begin, end)
        if self.wait_until_completed and known:
            self._complete(track, end)

    def host_waited(self, queue, int64_t since):
        cdef QueueTrack track = self.track_of(queue)
        if not track.timed:
            track.observe_ticks()
        self.add_row(waited, since, "wait", None, 0, track.key, -1, None, None, 2)
        self.count(track)

    cpdef count(self, QueueTrack track):
        if track is None:
            raise TypeError("track must not be None")
        cdef MemoryCounters counters = track.counters
        if counters is None:
            return
        cdef int64_t allocated = counters.current(allocated_bytes), reserved = counters.current(reserved_bytes)
        if counters.allocated != allocated or counters.reserved != reserved:
            counters.allocated, counters.reserved = allocated, reserved
            self.add(MEMORY, (clock(), track.key, allocated, reserved))

    def note(self, int entry_type, what, int64_t event=0, QueueTrack track=None, int64_t since=0):
        self.add_row(entry_type, since, what, None, event, -1 if track is None else track.key, -1, None, None, 2)

    cpdef add(self, int entry_type, tuple fields):
        if fields is None:
            raise TypeError("the fields must be a tuple, not None")
        cdef Row row = Row(entry_type, 0, -1, -1, -1, 0, 0, 0)
        self.push(row, None, fields, None, None, None)

    def close(self): self.closed = True

    def clear(self):
        self.reset_ring(1)
        self.queue_tracks.clear()

    cdef int reset_ring(self, size_t most) except -1:
        cdef Ring[Row]* fresh = new Ring[Row](most)  # first, as it may raise MemoryError
        cdef Ring[Row]* old = self.ring.release()
        self.resets += 1
        self.closed = True
        self.ring.reset(fresh)
        release_ring(old)
        del old

    @property
    def lost(self): return self.ring.get().lost()

    def rows(self):
        if not self.closed:
            raise ValueError("the recorder is still recording: close it first")
        # Making objects may run finalizers, which may call `clear`: until it returns, the ring belongs to this call.
        cdef unique_ptr[Ring[Row]] other
        other.reset(new Ring[Row](1))
        cdef uint64_t resets = self.resets
        self.ring.swap(other)
        try:
            return rows_of(other.get())
        finally:
            if self.resets == resets:
                self.ring.swap(other)
            release_ring(other.get())

    cdef QueueTrack track_of(self, queue):
        known = self.queue_tracks.get(<uintptr_t><PyObject*>queue)
        if known is None and (known := self.track(queue)) is None:
            raise TypeError("track() must return a QueueTrack")
        return known

    cdef int add_row(self, int entry_type, int64_t since, what, name, int64_t number, int32_t track, int32_t other,
                     begin, end, int first=1) except -1:
        cdef int32_t offset = 0
        code = self.program_code(&offset, first)
        cdef int64_t now = clock()
        cdef Row row = Row(entry_type, offset, track, other, self.thread_state.key, since or now, now, number)
        self.push(row, code, what, name, begin, end)

    cdef object program_code(self, int32_t* offset, int first):
        """Return the code of the innermost frame outside forebay, and store its bytecode offset.

        The `first` innermost frames are forebay's, whose objects need not be made.
        """
        cdef PyObject* caller
        try:
            frame = getframe(first)
        except ValueError:  # on a queue's thread, all of whose frames are internal
            return None
        while True:
            code = frame_code(frame)
            file = file_of(code)
            while file not in self.internal:
                if file in self.external:
                    offset[0] = frame_offset(frame)
                    return code
                (self.internal if self.is_internal(file) else self.external).add(file)
            caller = caller_of(frame)
            if caller == NULL:
                return None
            frame = <object> caller
            Py_DECREF(caller)

    cdef int push(self, Row row, code, what, name, begin, end) except -1:
        cdef cbool full = False
        cdef Row old
        if self.closed:
            return 0
        Py_INCREF(code)
        Py_INCREF(what)
        Py_INCREF(name)
        Py_INCREF(begin)
        Py_INCREF(end)
        row.code, row.what, row.name = <Ref>code, <Ref>what, <Ref>name
        row.begin_mark, row.end_mark = <Ref>begin, <Ref>end
        cdef Row* slot = &self.ring.get().next(&full)
        if full:
            old = slot[0]
        slot[0] = row
        if full:
            release_row(old)  # last, as it may run a destructor


cdef object take_mark(QueueTrack track):
    try:
        return track.mark()
    except failures:  # the queue was closed or its backend violates the contract, which is reported elsewhere
        return UNKNOWN


cdef bint is_busy(QueueTrack track) except -1:
    """Return True if the queue's last work is known to be unfinished."""
    try:
        return track.queue.reached() < track.last.tick
    except failures:
        return False


cdef list rows_of(Ring[Row]* ring):
    cdef size_t age
    cdef Row row
    cdef list found = []
    for age in range(ring.size()):
        row = ring[0][age]
        found.append((row.entry_type, ring.lost() + age, *fields_of(row)))
    return found


cdef tuple fields_of(Row row):
    if row.thread < 0:  # added by `add`
        return <tuple?>row.what
    fields = row.thread, row.begin_time, row.end_time, <object>row.code, row.offset, <object>row.what
    if row.entry_type != operation:
        return *fields, row.number, row.track
    return *fields, <object>row.name, row.number, row.track, row.other, <object>row.begin_mark, <object>row.end_mark


cdef void release_row(Row row) noexcept:
    Py_DECREF(row.code)
    Py_DECREF(row.what)
    Py_DECREF(row.name)
    Py_DECREF(row.begin_mark)
    Py_DECREF(row.end_mark)


cdef void release_ring(Ring[Row]* ring) noexcept:
    cdef size_t age
    if ring is NULL:  # its allocation failed
        return
    for age in range(ring.size()):
        release_row(ring[0][age])
