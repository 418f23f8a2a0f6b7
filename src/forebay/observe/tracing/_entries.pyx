# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""What a recorder does at every operation; _entries.pyi says what each name does.

An entry is a row of numbers and references, at which the garbage collector does not look. The interpreter's lock guards
the ring: nothing that may run Python stands between two changes of it that belong together.
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
from forebay.runtime.allocator import statistics

OPERATION, MOMENT, WAITED, MEMORY, RANGE = range(5)
UNKNOWN = object()

# Other names of the module are looked up each time.
cdef object getframe = sys._getframe, clock = time.perf_counter_ns, captures = capture_state
cdef object failures = contract_checks.FAILURES
cdef int operation = OPERATION, waited = WAITED
cdef object allocated_bytes = statistics.ALLOCATED_BYTES, reserved_bytes = statistics.RESERVED_BYTES

cdef extern from *:
    """
    static inline PyObject* code_of(PyObject* frame) { return (PyObject*)PyFrame_GetCode((PyFrameObject*)frame); }
    static inline int place_in(PyObject* frame) { return PyFrame_GetLasti((PyFrameObject*)frame); }
    """
    object code_of(object frame)
    int place_in(object frame)
    void Py_DECREF(PyObject*)

cdef extern from "base/ring.hpp" namespace "forebay" nogil:
    cppclass Ring[T]:
        Ring(size_t most) except +
        T& next(cbool* full)
        size_t size()
        uint64_t lost()
        const T& operator[](size_t age)

ctypedef PyObject* Ref  # of the row's own

cdef struct Row:
    int32_t about, at, line, other
    int64_t thread, since, until, number
    Ref code, what, name, begin, end


cdef class Counters:
    cdef object current
    cdef int64_t allocated, reserved

    def __init__(self, current):
        self.current, self.allocated, self.reserved = current, -1, -1


cdef class Line:
    cdef readonly int32_t key
    cdef readonly object queue
    cdef public object mark, last
    cdef public bint timed, logs
    cdef Counters counters

    def __init__(self, int32_t key, queue, Counters counters):
        self.key, self.queue, self.counters = key, queue, counters

    def look(self): pass


@cython.final
@cython.freelist(8)
cdef class Begun:
    cdef Line line
    cdef int64_t asked
    cdef object mark

    def __init__(self): raise TypeError("queueing() begins an operation")


cdef class Entries:
    cdef unique_ptr[Ring[Row]] ring
    cdef object here, is_ours
    cdef set ours, theirs  # files
    cdef readonly dict lines
    cdef bint waits
    cdef readonly bint closed

    def __cinit__(self):
        self.ours, self.theirs, self.lines, self.closed = set(), set(), {}, True
        self.ring.reset(new Ring[Row](1))

    def __init__(self, size_t most, here, is_ours, bint waits=False):
        self.begin_anew(most)
        self.here, self.is_ours, self.waits, self.closed = here, is_ours, waits, False

    def __dealloc__(self): give_up(self.ring.get())

    def queueing(self, queue):
        cdef Begun begun = Begun.__new__(Begun)
        cdef Line line = self.line_of(queue)
        begun.line, begun.asked = line, clock()
        if captures.under_way and captures.capture_of(queue) is not None:
            return begun
        if not line.logs and line.last is not None and at_work(line):
            begun.mark = line.last
        else:
            begun.mark = marked(line)
        return begun

    def queued(self, queue, Begun begun not None, what, name, int64_t nbytes=0, other=None, int above=0):
        cdef Line line = begun.line
        if line is None:
            raise TypeError("this operation has not begun")
        begin, end = begun.mark, None
        if captures.under_way and captures.capture_of(queue) is not None:
            begin = None  # it may have begun with this very operation, a wait
        if begin is not None:
            end = marked(line)
        known = end is not None and end is not UNKNOWN
        if known and (not line.logs or line.last is None or line.last < end):
            line.last = end
        of = -1 if other is None else self.line_of(other).key
        self.keep(operation, begun.asked, what, name, nbytes, line.key, of, begin, end, above)
        if self.waits and known:
            self._complete(line, end)

    def host_waited(self, queue, int64_t since):
        cdef Line line = self.line_of(queue)
        if not line.timed:
            line.look()
        self.keep(waited, since, "wait", None, 0, line.key, -1, None, None, 2)
        self.count(line)

    cpdef count(self, Line line):
        if line is None:
            raise TypeError("the line of a queue, not None")
        cdef Counters known = line.counters
        if known is None:
            return
        cdef int64_t allocated = known.current(allocated_bytes), reserved = known.current(reserved_bytes)
        if known.allocated != allocated or known.reserved != reserved:
            known.allocated, known.reserved = allocated, reserved
            self.add(MEMORY, (clock(), line.key, allocated, reserved))

    def note(self, int about, what, int64_t event=0, Line line=None, int64_t since=0, int above=0):
        self.keep(about, since, what, None, event, -1 if line is None else line.key, -1, None, None, above)

    cpdef add(self, int about, tuple fields):
        cdef Row row = Row(about, 0, -1, -1, -1, 0, 0, 0)
        self.push(row, None, fields, None, None, None)

    def close(self): self.closed = True

    def clear(self):
        self.begin_anew(1)
        self.lines.clear()

    cdef int begin_anew(self, size_t most) except -1:
        cdef Ring[Row]* fresh = new Ring[Row](most)  # before the old one goes, as there may be no memory
        cdef Ring[Row]* old = self.ring.release()
        self.closed = True
        self.ring.reset(fresh)
        give_up(old)
        del old

    @property
    def lost(self): return self.ring.get().lost()

    def rows(self):
        cdef Ring[Row]* ring = self.ring.get()
        cdef size_t age
        cdef Row row
        if not self.closed:
            raise ValueError("entries still come: close it first")
        found = []
        for age in range(ring.size()):
            row = ring[0][age]
            found.append((row.about, ring.lost() + age, *fields_of(row)))
        return found

    cdef Line line_of(self, queue):
        known = self.lines.get(<uintptr_t><PyObject*>queue)
        if known is None and (known := self.line(queue)) is None:
            raise TypeError("line() gave none")
        return known

    cdef int keep(self, int about, int64_t since, what, name, int64_t number, int32_t line, int32_t other, begin, end,
                  int above) except -1:
        cdef int32_t at = 0
        code = self.place(1 + above, &at)
        cdef int64_t now = clock()
        cdef Row row = Row(about, at, line, other, self.here.key, since or now, now, number)
        self.push(row, code, what, name, begin, end)

    cdef object place(self, int depth, int32_t* at):
        """The code of the innermost frame from there on that is not forebay's own, and where it is in it."""
        try:
            frame = getframe(depth)
        except ValueError:  # work of a queue's thread, that is forebay's own from the first frame on
            return None
        while frame is not None:
            code = code_of(frame)
            file = code.co_filename
            if file in self.theirs:
                at[0] = place_in(frame)
                return code
            if file not in self.ours:
                (self.ours if self.is_ours(file) else self.theirs).add(file)
            else:
                frame = frame.f_back
        return None

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
        row.code, row.what, row.name, row.begin, row.end = <Ref>code, <Ref>what, <Ref>name, <Ref>begin, <Ref>end
        cdef Row* place = &self.ring.get().next(&full)
        if full:
            old = place[0]
        place[0] = row
        if full:
            give_back(old)  # last, as it may run a destructor


cdef object marked(Line line):
    try:
        return line.mark()
    except failures:  # the queue was closed, or its backend is wrong, of which the program will hear without us
        return UNKNOWN


cdef bint at_work(Line line) except -1:
    """Whether its last work is known not to be done."""
    try:
        return line.queue.reached() < line.last.tick
    except failures:
        return False


cdef tuple fields_of(Row row):
    if row.thread < 0:  # what `add` was given
        return <tuple>row.what
    fields = row.thread, row.since, row.until, <object>row.code, row.at, <object>row.what
    if row.about != operation:
        return *fields, row.number, row.line
    return *fields, <object>row.name, row.number, row.line, row.other, <object>row.begin, <object>row.end


cdef void give_back(Row row) noexcept:
    Py_DECREF(row.code)
    Py_DECREF(row.what)
    Py_DECREF(row.name)
    Py_DECREF(row.begin)
    Py_DECREF(row.end)


cdef void give_up(Ring[Row]* ring) noexcept:
    cdef size_t age
    if ring is NULL:  # there was no memory for one
        return
    for age in range(ring.size()):
        give_back(ring[0][age])
