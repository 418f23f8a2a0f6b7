"""The C interface of _stream."""

cimport cython
from libc.stdint cimport uintptr_t


cdef enum:
    MOST_FUNCTIONS = 32


cdef inline int set_functions(void** table, tuple names, addresses) except -1:
    """Fill a structure of pointers to functions, in the order of the names, completely or not at all."""
    cdef uintptr_t[MOST_FUNCTIONS] found
    cdef size_t at, count = len(names)
    if count > MOST_FUNCTIONS:
        raise ValueError(f"{count} functions; {MOST_FUNCTIONS} at most")
    for at in range(count):
        found[at] = addresses[names[at]]
        if found[at] == 0:
            raise ValueError(f"the address of {names[at]} is 0")
    for at in range(count):
        table[at] = <void*>found[at]
    return 0


@cython.final
cdef class Current:
    cdef object context, result
    cdef void* handle
    cdef int mode  # that the thread had before
    cdef bint pushed, exchanged

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
