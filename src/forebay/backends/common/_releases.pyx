# cython: language_level=3, autotestdict=False, auto_pickle=False
"""Releases of memory, as captured graphs see them; documented in _releases.pyi.

No function here runs Python code, so that each is one step for all threads, which hold the GIL.
"""

cimport cython
from libc.stdint cimport uint64_t

cdef tuple _watches = ()  # replaced, never changed: a destructor may begin or end a watch while they are visited


@cython.final
cdef class ReleaseLog:
    """The releases of one port's memory, which captured graphs and captures see.

    Note a range after the port's `memory` lacks it, and before it is unmapped.
    """

    cdef readonly Py_ssize_t count

    def note(self, uint64_t address, uint64_t nbytes):
        """Note a release.

        Parameters
        ----------
        address : int
            Address of the range.
        nbytes : int
            Size in bytes.
        """
        cdef ReleaseWatch watch
        for watch in _watches:
            watch.releases.append((len(watch.work), address, nbytes))
        self.count += 1


@cython.final
cdef class ReleaseWatch:
    cdef list work
    cdef readonly list releases

    def __cinit__(self, list work not None):
        self.work, self.releases = work, []
        _replace(None, self)

    def stop(self): _replace(self, None)


cdef _replace(old, new):
    global _watches
    cdef tuple before = None, after = None
    while before is not _watches:  # a destructor may have replaced them while the new tuple was made
        before = _watches
        after = tuple([each for each in (*before, new) if each is not None and each is not old])
    _watches = after
