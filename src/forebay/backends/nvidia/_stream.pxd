"""The C interface of _stream."""

cimport cython


@cython.final
cdef class Current:
    cdef object context, result
    cdef void* handle
    cdef int mode  # that the thread had before
    cdef bint pushed, exchanged

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
