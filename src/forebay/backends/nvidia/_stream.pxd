"""The C interface of _stream."""

cimport cython
from libc.stdint cimport uintptr_t


cdef inline int set_functions(void** table, tuple names, addresses) except -1:
    """Fill a structure of pointers to functions, whose members have the order of the names."""
    cdef size_t at
    for at in range(<size_t>len(names)):
        table[at] = <void*><uintptr_t>addresses[names[at]]
    return 0


@cython.final
cdef class Current:
    cdef object context, result
    cdef void* handle
    cdef int mode  # that the thread had before
    cdef bint pushed, exchanged

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
