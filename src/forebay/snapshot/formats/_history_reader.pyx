# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""Reader of pickled histories, documented in _history_reader.pyi. native/pickle/history.hpp does the work."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string

cdef extern from "pickle/history.hpp" namespace "forebay":
    enum HistoryStatus:
        kHistoryMore, kHistoryDone, kHistoryOdd, kHistoryTooLarge
    enum HistoryKind:
        kValueNone, kValueFalse, kValueTrue, kValueInt, kValueUnsigned, kValueFloat, kValueText, kValuePair, kValueBox
    enum BoxKind:
        kBoxEmptyDict, kBoxEmptyList, kBoxDict, kBoxList, kBoxTuple, kBoxFrame, kBoxStack, kBoxEntry, kBoxRows
    struct HistoryValue:
        uint64_t bits
        HistoryKind kind
    struct HistoryEntry:
        pass
    struct HistoryRange:
        uint64_t first, count
    cppclass Pair "forebay::PairTable::Pair":
        uint64_t first, second
    cppclass PairTable:
        size_t size()
        const Pair* data()
        Pair operator[](size_t)
    cppclass CReader "forebay::HistoryReader":
        uint64_t limit, used
        CReader(uint64_t)
        void name_action(const char*, size_t, unsigned)
        HistoryStatus read(const char*, size_t, uint64_t) nogil
        size_t consumed()
        cbool salvage()
        void release_values()
        HistoryValue root()
        BoxKind box_kind(uint64_t)
        uint64_t box_row(uint64_t)
        size_t content_size(uint64_t)
        HistoryValue content(uint64_t, size_t)
        const string& text(uint64_t)
        HistoryRange range(uint64_t)
        const PairTable& pairs()
        const PairTable& nodes()
        const PairTable& frames()
        const PairTable& notes()
        const PairTable& details()
        HistoryEntry* entries()
        size_t count()
        size_t texts()

cdef extern from *:
    """
    static inline double forebay_double(uint64_t bits) { double real; memcpy(&real, &bits, sizeof real); return real; }
    """
    double forebay_double(uint64_t)

cdef enum:
    kContainer = 256  # bytes of a container with a few items
    kPair = 128  # of a tuple of two numbers
    kItem = 48  # of an item: the reference, and the number that it refers to
    kMaxDepth = 200  # containers that were extended after they became items of others may be nested more than 100 deep


class Odd(ValueError):
    """The pickle is not a history as PyTorch writes it."""


class TooLarge(ValueError):
    """The values would need more memory than the limit."""


class StackRow(int):
    """A list of frames: its row in the stack tree."""


class Rows:
    """A list of entries: their rows in the history."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __len__(self):
        return self.stop - self.start


cdef enum:
    kReading, kSalvaged, kTaken, kFailed


cdef class HistoryReader:
    cdef CReader* reader
    cdef readonly bint done
    cdef dict made
    cdef int state
    cdef bint busy  # a method runs that releases the GIL, or makes objects, which may run finalizers
    cdef Py_ssize_t exports  # buffers that refer to the rows, which a further read may move

    def __cinit__(self, uint64_t seed, dict actions not None):
        cdef bytes text
        self.reader = new CReader(seed)
        for word, number in actions.items():
            text = str(word).encode()
            self.reader.name_action(text, len(text), number)

    def __dealloc__(self):
        del self.reader

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self.busy:
            raise BufferError("the reader is in use")
        PyBuffer_FillInfo(buffer, self, self.reader.entries(), 48 * self.reader.count(), 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.exports -= 1

    cdef int begin(self, bint possible, str what) except -1:
        if self.busy or not possible:
            raise ValueError(f"{what} is not possible now: the reader is in use, or it has ended")
        self.busy = True
        return 0

    def read(self, const uint8_t[::1] window not None, uint64_t beyond, uint64_t limit):
        cdef HistoryStatus status
        cdef size_t size = window.shape[0]
        self.begin(self.state == kReading and not self.done and not self.exports, "reading")
        self.reader.limit = limit
        if size == 0:
            self.busy = False
            return 0
        with nogil:
            status = self.reader.read(<const char*>&window[0], size, beyond)
        self.busy = False
        if status != kHistoryMore and status != kHistoryDone:
            self.state = kFailed  # the stack of values may end inside a step
            if status == kHistoryTooLarge:
                raise TooLarge(f"its values need more than {limit} bytes of memory")
            raise Odd
        self.done = status == kHistoryDone
        return self.reader.consumed()

    def salvage(self):
        self.begin(self.state == kReading and not self.done and not self.exports, "salvage")
        cdef bint found = self.reader.salvage()
        self.busy = False
        self.state = kSalvaged if found else kFailed
        return found

    def value(self):
        self.begin(self.state == kSalvaged or (self.state == kReading and self.done), "taking the value")
        self.state = kTaken
        self.made = {}
        try:
            return self.build(self.reader.root(), 0)
        finally:
            self.made = None
            self.reader.release_values()
            self.busy = False

    def __len__(self):
        self.check_idle()
        return self.reader.count()

    def pairs(self):
        self.check_idle()
        return bytes_of(self.reader.pairs())

    def nodes(self):
        self.check_idle()
        return bytes_of(self.reader.nodes())

    def frames(self):
        self.check_idle()
        return bytes_of(self.reader.frames())

    def notes(self):
        self.check_idle()
        return bytes_of(self.reader.notes())

    def details(self):
        self.check_idle()
        return bytes_of(self.reader.details())

    cdef int check_idle(self) except -1:
        if self.busy:
            raise ValueError("the reader is in use by another thread")
        return 0

    def text(self, uint64_t row):
        self.check_idle()
        return self.text_of(row)

    cdef str text_of(self, uint64_t row):
        if row >= self.reader.texts():
            raise IndexError(row)
        try:
            return self.reader.text(row).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise Odd from None

    cdef int charge(self, uint64_t nbytes) except -1:
        self.reader.used += nbytes
        if self.reader.used > self.reader.limit:
            raise TooLarge(f"its values need more than {self.reader.limit} bytes of memory")
        return 0

    cdef object build(self, HistoryValue value, int depth):
        cdef Pair pair
        if value.kind == kValueInt:
            return <int64_t>value.bits
        if value.kind == kValueText:
            return self.build_text(value.bits)
        if value.kind == kValueBox:
            return self.build_box(value.bits, depth)
        if value.kind == kValuePair:
            self.charge(kPair)
            pair = self.reader.pairs()[value.bits]
            return pair.first, pair.second
        if value.kind == kValueFloat:
            return forebay_double(value.bits)
        if value.kind == kValueUnsigned:
            return value.bits
        return None if value.kind == kValueNone else value.kind == kValueTrue

    cdef object build_text(self, uint64_t row):
        if (found := self.made.get(~<object>row)) is None:
            found = self.made[~<object>row] = self.text_of(row)
            self.charge(kContainer + 4 * len(found))
        return found

    cdef object build_box(self, uint64_t box, int depth):
        """Return the object of a container, always the same one: a file may refer to it a million times."""
        cdef BoxKind kind = self.reader.box_kind(box)
        cdef uint64_t row = self.reader.box_row(box)
        cdef HistoryRange rows
        cdef size_t at
        if (known := self.made.get(box)) is not None:
            return known
        self.charge(kContainer)
        if kind == kBoxStack:
            return StackRow(row)
        if kind == kBoxRows:
            rows = self.reader.range(row)
            found = self.made[box] = Rows(rows.first, rows.first + rows.count)
            return found
        if kind == kBoxEntry or depth > kMaxDepth:
            raise Odd
        if kind == kBoxFrame:
            found = self.made[box] = self.frame(row)
            return found
        found = self.made[box] = {} if kind == kBoxEmptyDict or kind == kBoxDict else []
        if kind == kBoxEmptyDict or kind == kBoxEmptyList:
            return found
        self.charge(kItem * self.reader.content_size(row))
        if kind == kBoxDict:
            for at in range(0, self.reader.content_size(row), 2):
                key = self.build(self.reader.content(row, at), depth + 1)
                found[key] = self.build(self.reader.content(row, at + 1), depth + 1)
        else:
            for at in range(self.reader.content_size(row)):
                found.append(self.build(self.reader.content(row, at), depth + 1))
        if kind == kBoxTuple:
            found = self.made[box] = tuple(found)
        return found

    cdef object frame(self, uint64_t row):
        cdef Pair pair = self.reader.frames()[row]
        cdef uint64_t file = pair.first >> 32, name = pair.first & 0xFFFFFFFF
        return {"filename": self.build_text(file), "name": self.build_text(name), "line": pair.second & 0xFFFFFFFF}


cdef bytes bytes_of(const PairTable& table):
    return (<const char*>table.data())[:16 * table.size()] if table.size() else b""
