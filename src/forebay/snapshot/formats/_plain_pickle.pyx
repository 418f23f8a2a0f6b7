# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""Unpickler of plain values, documented in _plain_pickle.pyi. It builds what native/pickle/opcodes.hpp decodes."""

from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc

cdef extern from "Python.h":
    PyObject* PyDict_New() except NULL
    PyObject* PyList_New(Py_ssize_t) except NULL
    PyObject* PyTuple_New(Py_ssize_t) except NULL
    PyObject* PyLong_FromLongLong(long long) except NULL
    PyObject* PyLong_FromUnsignedLongLong(unsigned long long) except NULL
    PyObject* PyFloat_FromDouble(double) except NULL
    PyObject* PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*) except NULL
    PyObject* PyUnicode_DecodeRawUnicodeEscape(const char*, Py_ssize_t, const char*) except NULL
    int PyDict_SetItem(PyObject*, PyObject*, PyObject*) except -1
    Py_ssize_t PyDict_Size(PyObject*) except -1
    int PyList_Append(PyObject*, PyObject*) except -1
    int PyDict_CheckExact(PyObject*)
    int PyList_CheckExact(PyObject*)
    int PyLong_CheckExact(PyObject*)
    int PyUnicode_CheckExact(PyObject*)
    int PyUnicode_KIND(PyObject*)
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject*)
    void PyTuple_SET_ITEM(PyObject*, Py_ssize_t, PyObject*)
    void Py_INCREF(PyObject*)
    void Py_DECREF(PyObject*)
    PyObject* Py_None
    PyObject* Py_True
    PyObject* Py_False

cdef extern from "pickle/opcodes.hpp" namespace "forebay":
    enum PickleKind:
        kPickleStop, kPickleNone, kPickleTrue, kPickleFalse, kPickleInt, kPickleUnsigned, kPickleFloat
        kPickleFloatText, kPickleText, kPickleRawText, kPickleMark, kPickleTuple, kPickleEmptyList, kPickleMarkedList
        kPickleEmptyDict, kPickleMarkedDict, kPickleAppend, kPickleAppends, kPickleSetItem, kPickleSetItems
        kPickleGet, kPicklePut, kPickleMemoize, kPickleOther, kPickleForbidden, kPickleInvalid, kPickleTruncated
    cppclass PickleReader:
        int64_t number
        double real
        const char* text
        size_t length
        PickleReader()
        PickleReader(const char*, size_t)
        size_t opcode()
        PickleKind next() nogil

cdef enum:
    kObject = 64  # bytes of an empty list or dict, with the collector's header
    kNumber = 32
    kString = 80  # of a short string
    kItem = 10  # of a list's item, with the room that lists keep for growth
    kSlot = 9  # of the stack: a reference and a depth
    kMaxDepth = 100
    kBetweenSignals = 1 << 16  # opcodes

cdef struct Slot:
    PyObject* value
    uint8_t depth


class Invalid(ValueError):
    """The pickle is not one of plain values, or is damaged."""


class Forbidden(ValueError):
    """An opcode would run or import something. The argument is its offset."""


class TooLarge(ValueError):
    """The values would need more memory than the limit."""


cdef inline size_t dict_bytes(Py_ssize_t items) noexcept:
    """Return an upper bound of the bytes of a dict's tables, and of the smaller ones that it outgrew."""
    if items == 0:
        return 0
    if items <= 5:
        return 128
    if items <= 10:
        return 224
    if items <= 20:
        return 384
    if items <= 42:
        return 768
    return 72 * items


cdef bint is_small(PyObject* key) except -1:
    """Return True for an int from 0 to 2^32 - 1.

    Hashes of strings are random and those of small numbers differ, so that no file can choose keys that collide.
    """
    return PyLong_CheckExact(key) and 0 <= <object>key < 1 << 32


cdef class _Builder:
    cdef Slot* stack
    cdef Slot* memo
    cdef Py_ssize_t* marks
    cdef Py_ssize_t height, room, memoized, memo_room, marked, mark_room
    cdef size_t used, limit, size
    cdef PickleReader reader
    cdef bytes data

    def __cinit__(self, bytes data, size_t limit):
        self.data, self.size, self.limit = data, len(data), limit
        self.reader = PickleReader(<const char*>data, self.size)

    def __dealloc__(self):
        self.clear()

    cdef void clear(self) noexcept:
        cdef Py_ssize_t at
        while self.height:
            self.height -= 1
            Py_DECREF(self.stack[self.height].value)
        for at in range(self.memo_room):
            if self.memo[at].value is not NULL:
                Py_DECREF(self.memo[at].value)
        self.memo_room = self.room = self.mark_room = 0
        free(self.stack)
        free(self.memo)
        free(self.marks)
        self.stack = self.memo = NULL
        self.marks = NULL

    cdef inline int charge(self, size_t nbytes) except -1:
        self.used += nbytes
        if self.used > self.limit:
            raise TooLarge(f"its values need more than {self.limit} bytes of memory")
        return 0

    cdef object invalid(self, str reason):
        return Invalid(f"{reason} at byte {self.reader.opcode()}")

    cdef void* grow(self, void* old, Py_ssize_t* room, Py_ssize_t needed, size_t width) except NULL:
        """Enlarge an array by half, or more if needed."""
        cdef Py_ssize_t larger = max(needed, room[0] + room[0] // 2 + 64)
        self.charge((larger - room[0]) * width)
        cdef void* fresh = realloc(old, larger * width)
        if fresh is NULL:
            raise MemoryError
        room[0] = larger
        return fresh

    cdef inline int push(self, PyObject* value, uint8_t depth) except -1:
        """Push a value. Takes the reference."""
        if self.height == self.room:
            try:
                self.stack = <Slot*>self.grow(self.stack, &self.room, 0, sizeof(Slot))
            except BaseException:
                Py_DECREF(value)
                raise
        self.stack[self.height].value = value
        self.stack[self.height].depth = depth
        self.height += 1
        return 0

    cdef inline Py_ssize_t floor(self) noexcept:
        """Return the height below which the current opcode must not pop."""
        return self.marks[self.marked - 1] if self.marked else 0

    cdef Py_ssize_t pop_mark(self) except -1:
        if not self.marked:
            raise self.invalid("a mark is missing")
        self.marked -= 1
        return self.marks[self.marked]

    cdef uint8_t depth_above(self, Py_ssize_t start) except 0:
        """Return the nesting depth of a container of the values from `start` up."""
        cdef uint8_t deepest = 0
        cdef Py_ssize_t at
        for at in range(start, self.height):
            if self.stack[at].depth > deepest:
                deepest = self.stack[at].depth
        if deepest >= kMaxDepth:
            raise self.invalid("values are nested too deeply")
        return deepest + 1

    cdef void drop(self, Py_ssize_t height) noexcept:
        while self.height > height:
            self.height -= 1
            Py_DECREF(self.stack[self.height].value)

    cdef int make_tuple(self, Py_ssize_t start) except -1:
        cdef Py_ssize_t count = self.height - start, at
        cdef uint8_t depth = self.depth_above(start)
        self.charge(64 + 8 * count)
        cdef PyObject* made = PyTuple_New(count)
        for at in range(count):
            PyTuple_SET_ITEM(made, at, self.stack[start + at].value)
        self.height = start
        return self.push(made, depth)

    cdef int extend(self, Py_ssize_t start) except -1:
        """Append the values from `start` up to the list below them."""
        cdef uint8_t depth = self.depth_above(start)
        cdef Py_ssize_t at
        if start <= self.floor() or not PyList_CheckExact(self.stack[start - 1].value):
            raise self.invalid("items without a list")
        self.charge(kItem * (self.height - start))
        for at in range(start, self.height):
            PyList_Append(self.stack[start - 1].value, self.stack[at].value)
        self.drop(start)
        if depth > self.stack[start - 1].depth:
            self.stack[start - 1].depth = depth
        return 0

    cdef int update(self, Py_ssize_t start) except -1:
        """Set the keys and values from `start` up in the dict below them."""
        cdef uint8_t depth = self.depth_above(start)
        cdef Py_ssize_t at
        if start <= self.floor() or not PyDict_CheckExact(self.stack[start - 1].value) or (self.height - start) & 1:
            raise self.invalid("items without a dict")
        cdef PyObject* table = self.stack[start - 1].value
        cdef Py_ssize_t before = PyDict_Size(table)
        for at in range(start, self.height, 2):
            if not PyUnicode_CheckExact(self.stack[at].value) and not is_small(self.stack[at].value):
                raise self.invalid("a key is neither a string nor a number below 2^32")
        self.charge(dict_bytes(before + (self.height - start) // 2) - dict_bytes(before))
        for at in range(start, self.height, 2):
            PyDict_SetItem(table, self.stack[at].value, self.stack[at + 1].value)
        self.drop(start)
        if depth > self.stack[start - 1].depth:
            self.stack[start - 1].depth = depth
        return 0

    cdef int put(self, int64_t index) except -1:
        if self.height <= self.floor():
            raise self.invalid("there is nothing to memoize")
        if index >= self.memo_room:
            # A pickler numbers its values from 0, and every one takes a byte or more.
            if index > <int64_t>self.size:
                raise self.invalid("a memo index is too large")
            self.enlarge_memo(index + 1)
        cdef Slot* slot = &self.memo[index]
        cdef PyObject* old = slot.value
        slot[0] = self.stack[self.height - 1]
        Py_INCREF(slot.value)
        if old is NULL:
            self.memoized += 1
        else:
            Py_DECREF(old)
        return 0

    cdef int enlarge_memo(self, Py_ssize_t needed) except -1:
        cdef Py_ssize_t before = self.memo_room, at
        self.memo = <Slot*>self.grow(self.memo, &self.memo_room, needed, sizeof(Slot))
        for at in range(before, self.memo_room):
            self.memo[at].value = NULL
        return 0

    cdef int get(self, int64_t index) except -1:
        if index >= self.memo_room or self.memo[index].value is NULL:
            raise self.invalid("an unknown value is referenced")
        Py_INCREF(self.memo[index].value)
        return self.push(self.memo[index].value, self.memo[index].depth)

    cdef int push_text(self, PickleKind kind) except -1:
        cdef PyObject* text
        if kind == kPickleText:
            text = PyUnicode_DecodeUTF8(self.reader.text, self.reader.length, "surrogatepass")
        else:
            text = PyUnicode_DecodeRawUnicodeEscape(self.reader.text, self.reader.length, NULL)
        self.used += kString + PyUnicode_GET_LENGTH(text) * PyUnicode_KIND(text)
        self.push(text, 0)
        return self.charge(0)

    cdef object build(self):
        cdef PickleKind kind
        cdef Py_ssize_t start
        cdef uint64_t count = 0
        cdef PyObject* made
        while True:
            count += 1
            if count % kBetweenSignals == 0:
                PyErr_CheckSignals()
            kind = self.reader.next()
            if kind == kPickleGet:
                self.get(self.reader.number)
            elif kind == kPickleInt:
                if not -5 <= self.reader.number <= 256:
                    self.charge(kNumber)
                self.push(PyLong_FromLongLong(self.reader.number), 0)
            elif kind == kPickleMemoize:
                self.put(self.memoized)
            elif kind == kPicklePut:
                self.put(self.reader.number)
            elif kind == kPickleText or kind == kPickleRawText:
                self.push_text(kind)
            elif kind == kPickleMark:
                if self.marked == self.mark_room:
                    self.marks = <Py_ssize_t*>self.grow(self.marks, &self.mark_room, 0, sizeof(Py_ssize_t))
                self.marks[self.marked] = self.height
                self.marked += 1
            elif kind == kPickleEmptyDict:
                self.charge(kObject)
                self.push(PyDict_New(), 1)
            elif kind == kPickleEmptyList:
                self.charge(kObject)
                self.push(PyList_New(0), 1)
            elif kind == kPickleSetItems:
                self.update(self.pop_mark())
            elif kind == kPickleSetItem:
                if self.height - self.floor() < 3:
                    raise self.invalid("items without a dict")
                self.update(self.height - 2)
            elif kind == kPickleAppends:
                self.extend(self.pop_mark())
            elif kind == kPickleAppend:
                if self.height - self.floor() < 2:
                    raise self.invalid("items without a list")
                self.extend(self.height - 1)
            elif kind == kPickleTuple:
                start = self.pop_mark() if self.reader.number < 0 else self.height - self.reader.number
                if start < self.floor():
                    raise self.invalid("items of a tuple are missing")
                self.make_tuple(start)
            elif kind == kPickleNone:
                Py_INCREF(Py_None)
                self.push(Py_None, 0)
            elif kind == kPickleTrue:
                Py_INCREF(Py_True)
                self.push(Py_True, 0)
            elif kind == kPickleFalse:
                Py_INCREF(Py_False)
                self.push(Py_False, 0)
            elif kind == kPickleFloat or kind == kPickleFloatText:
                self.charge(kNumber)
                if kind == kPickleFloatText:
                    if self.reader.length > 40:
                        raise self.invalid("a number is too long")
                    self.reader.real = float(self.reader.text[:self.reader.length])
                self.push(PyFloat_FromDouble(self.reader.real), 0)
            elif kind == kPickleMarkedList or kind == kPickleMarkedDict:
                start = self.pop_mark()
                self.charge(kObject)
                made = PyList_New(0) if kind == kPickleMarkedList else PyDict_New()
                self.insert(start, made)
                self.extend(start + 1) if kind == kPickleMarkedList else self.update(start + 1)
            elif kind == kPickleUnsigned:
                self.charge(kNumber)
                self.push(PyLong_FromUnsignedLongLong(<uint64_t>self.reader.number), 0)
            elif kind == kPickleOther:
                pass
            elif kind == kPickleStop:
                return self.result()
            elif kind == kPickleTruncated:
                raise Invalid("truncated: the pickle has no STOP opcode")
            elif kind == kPickleForbidden:
                raise Forbidden(self.reader.opcode())
            else:
                raise self.invalid(f"unknown opcode {self.data[self.reader.opcode()]:#04x}, or a number out of range,")

    cdef int insert(self, Py_ssize_t start, PyObject* made) except -1:
        """Insert a value below those from `start` up. Takes the reference."""
        cdef Py_ssize_t at
        self.push(made, 1)
        for at in range(self.height - 1, start, -1):
            self.stack[at] = self.stack[at - 1]
        self.stack[start].value, self.stack[start].depth = made, 1
        return 0

    cdef object result(self):
        if self.marked or self.height != 1:
            raise self.invalid("the pickle does not end with one value")
        return <object>self.stack[0].value


def load(bytes data not None, size_t limit):
    builder = _Builder(data, limit)
    try:
        return builder.build(), builder.used
    finally:
        builder.clear()
