# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""Match of allocations with their frees, documented in _lifetimes.pyi. native/snapshot/lifetimes.hpp does the work."""

from libc.stdint cimport uint8_t, uint32_t
from libcpp.vector cimport vector

cdef extern from "snapshot/lifetimes.hpp" namespace "forebay":
    cppclass TraceRow:
        pass
    cppclass SegmentRow:
        pass
    cppclass BlockRow:
        uint32_t segment
    cppclass Lifetime:
        pass
    vector[Lifetime] match_lifetimes(
        const TraceRow*, size_t, const BlockRow*, size_t, const SegmentRow*) except + nogil

cdef enum:
    kMostEntries = 0xFFFFFFF0


cdef size_t rows_of(Py_ssize_t nbytes, size_t width) except? 0xFFFFFFFF:
    if nbytes % width or nbytes // width > kMostEntries:
        raise ValueError(f"{nbytes} bytes are no rows of {width} bytes, or too many")
    return nbytes // width


def match(const uint8_t[::1] trace not None, const uint8_t[::1] blocks not None, const uint8_t[::1] segments not None):
    cdef size_t entries = rows_of(trace.shape[0], sizeof(TraceRow))
    cdef size_t count = rows_of(blocks.shape[0], sizeof(BlockRow))
    cdef size_t most = rows_of(segments.shape[0], sizeof(SegmentRow))
    cdef const TraceRow* first = <const TraceRow*>&trace[0] if entries else NULL
    cdef const BlockRow* block = <const BlockRow*>&blocks[0] if count else NULL
    cdef const SegmentRow* segment = <const SegmentRow*>&segments[0] if most else NULL
    cdef size_t at
    cdef vector[Lifetime] found
    for at in range(count):
        if block[at].segment >= most:
            raise IndexError(f"block {at} is in segment {block[at].segment} of {most}")
    with nogil:
        found = match_lifetimes(first, entries, block, count, segment)
    return (<const char*>found.data())[:found.size() * sizeof(Lifetime)] if found.size() else b""
