# cython: language_level=3, autotestdict=False, auto_pickle=False
"""The wait of the endpoint's threads; documented in _waiting.pyi."""

import gc
from _thread import allocate_lock, get_ident

cimport cython
from libc.errno cimport EINTR, errno

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *descriptors, unsigned long count, int milliseconds)

cdef extern from "Python.h":
    int PyGC_Enable()
    int PyGC_Disable()
    object PyObject_Call(object function, tuple args, void *names)

cdef enum:
    _MOST = 128

cdef object get_threshold = gc.get_threshold, set_threshold = gc.set_threshold
cdef tuple _never = (0,)


@cython.final
cdef class CollectionFreeSection:
    cdef readonly object lock
    cdef object _acquire, _release
    cdef object _owner  # number of the thread that is in the section
    cdef tuple _threshold  # the program's; None if it collects no garbage, and outside the section

    def __cinit__(self): self.make_lock()

    cdef make_lock(self):
        self.lock = allocate_lock()
        self._acquire, self._release = self.lock.acquire, self.lock.release

    # Between the two steps of a function, no object of Python may be made, as that may begin a collection. `gc.disable`
    # as the step would annul a call of the program in the meantime: a program changes its threshold more seldom.

    cpdef enter(self):
        if self._owner == get_ident():
            raise RuntimeError("this thread has entered the section already")
        self._acquire()
        self._owner = get_ident()
        cdef int collects = PyGC_Disable()
        try:
            found = get_threshold()
            if found[0]:
                self._threshold = (found[0],)
                PyObject_Call(set_threshold, _never, NULL)
        finally:
            if collects:
                PyGC_Enable()

    cpdef leave(self):
        if self._owner != get_ident():
            raise RuntimeError("this thread has not entered the section")
        self.restore()
        self._owner = None
        self._release()

    def after_fork_in_child(self):
        self.restore()
        self._owner = None
        self.make_lock()

    cdef restore(self):
        cdef int collects = PyGC_Disable()
        try:
            if self._threshold is not None and not get_threshold()[0]:  # else the program has changed it
                PyObject_Call(set_threshold, self._threshold, NULL)
            self._threshold = None
        finally:
            if collects:
                PyGC_Enable()

    def wait(self, dict events not None, double seconds):
        cdef pollfd descriptors[_MOST]
        cdef unsigned long count = 0, index
        cdef int found, reason, milliseconds = <int>(min(max(seconds, 0.0), 1.0) * 1000)
        if len(events) > _MOST:
            raise ValueError(f"at most {_MOST} descriptors can be waited for: {len(events)}")
        for number, wanted in events.items():
            descriptors[count].fd, descriptors[count].events, descriptors[count].revents = number, wanted, 0
            count += 1
        self.leave()
        with nogil:
            found = poll(descriptors, count, milliseconds)
            reason = errno
        self.enter()
        if found < 0 and reason != EINTR:
            raise OSError(reason, "the endpoint cannot wait for its clients")
        return [descriptors[index].fd for index in range(count) if found > 0 and descriptors[index].revents]
