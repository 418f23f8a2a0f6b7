"""The C interface of _thread_state."""

cimport cython


@cython.final
cdef class ThreadState:
    cdef public object device, opened, stream
    cdef public bint explicit
    cdef public dict indices, streams, named
    cdef public list stream_stack
    cdef object __weakref__

    cpdef make_current(self, device)
    cpdef exchange(self, device)
