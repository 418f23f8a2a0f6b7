# cython: language_level=3, autotestdict=False
"""Memory segments of a host port, and the mappings behind them; documented in _segments.pyi."""

cimport cython
cimport libc.errno
from libc.stdint cimport uintptr_t
from posix.mman cimport MAP_ANON, MAP_FAILED, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE, madvise, mmap, munmap

from forebay._late_errors cimport is_interrupt, raise_late

import errno as errors
import os

from forebay.backends.common._releases import ReleaseLog
from forebay.backends.common.arguments import integer_of, size_of
from forebay.errors import DeviceError, WrongState

cdef extern from *:
    """
    #ifndef MAP_NORESERVE
    #define MAP_NORESERVE 0
    #endif
    #ifdef MADV_HUGEPAGE
    #define FOREBAY_HUGE MADV_HUGEPAGE
    #else
    #define FOREBAY_HUGE -1
    #endif
    """
    int MAP_NORESERVE
    int FOREBAY_HUGE

cdef extern from "unistd.h" nogil:
    int getpid()
    long sysconf(int name)
    int _SC_PAGESIZE

cdef enum:
    _ALIGNMENT = 2 << 20

cdef Py_ssize_t _TOO_LARGE = <Py_ssize_t>1 << 62

ALIGNMENT = _ALIGNMENT


cdef class HostSegments:
    cdef dict _segments
    cdef list _leaving  # memory that queued work may still use: address, size, and the table that had it
    cdef readonly object releases
    cdef readonly Py_ssize_t segment_bytes
    cdef public bint _closed
    cdef public int _process  # the process that uses the port

    def __cinit__(self, *_, **__):
        self._segments = {}
        self._leaving = []
        self.releases = ReleaseLog()

    # Hooks: a subclass implements them

    def check_open(self): raise NotImplementedError
    def over_capacity(self): raise NotImplementedError
    def out_of_memory(self, nbytes, error=None, lacks="memory"): raise NotImplementedError
    def device_error(self, error, message, remedy=""): raise NotImplementedError
    def on_mapped(self, address, nbytes, segment): raise NotImplementedError
    def on_unmapping(self, address, nbytes, *, part=False): raise NotImplementedError
    def on_released(self, address): raise NotImplementedError
    def drain(self): raise NotImplementedError
    def settled(self): raise NotImplementedError

    def segments(self): return list(self._segments.items())

    def recount(self):
        leaving = [each[1] for each in self._leaving if each[2] is self._segments]
        self.segment_bytes = sum(self._segments.values()) + sum(leaving)

    def take_segments(self):
        cdef dict taken = self._segments
        cdef list leaving = self._leaving
        self._segments, self._leaving = {}, []
        return [*taken.items(), *[each[:2] for each in leaving]]

    def reserve(self, nbytes):
        cdef Py_ssize_t size = size_of(nbytes)
        cdef uintptr_t address = 0
        cdef bint hooked = False
        self.check_open()
        if self._leaving and self.settled():  # their release was interrupted
            self.complete_releases(None)
        self.segment_bytes += size  # before the check: a destructor may run between
        try:
            if self.over_capacity():
                self.segment_bytes -= size
                size = 0
                raise self.out_of_memory(nbytes)
            address = _map(size, PROT_READ | PROT_WRITE, self.charged)
            if address == 0:
                failure = _mmap_error()
                self.segment_bytes -= size
                size = 0
                raise self.out_of_memory(nbytes, failure)
            hooked = True
            self.on_mapped(address, size, address)
            self.check_open()  # another thread may have closed the port
            self._segments[address] = size
            return address
        except BaseException:
            if address:
                try:
                    if hooked:
                        self.on_unmapping(address, size)
                finally:
                    munmap(<void*>address, _pages(size))
                    self.segment_bytes -= size
            elif size:
                self.segment_bytes -= size
            raise

    def release(self, address): self.release_from(self._segments, address, "release", "reserve")

    def unpin(self, address): self.release_from(self._pinned, address, "unpin", "pin")

    def release_managed(self, address):
        self.release_from(self._managed, address, "release_managed", "reserve_managed")

    cdef release_from(self, dict mappings, address, str call, str origin):
        if self._closed or self._process != getpid():  # without Python code, which could be interrupted
            self.check_open()
        key = address if type(address) is int else integer_of(address, "address")
        nbytes = mappings.get(key)
        entry = (key, nbytes, mappings)  # before the next steps, as it may run destructors
        if nbytes is not None:
            self.releases.note(key, nbytes)  # a capture that ends before the second note knows the release
            nbytes = mappings.pop(key, None)  # from here on no other thread releases it
        if nbytes is None:
            message = f"{self.name}: {key:#x} is not the address of memory that `{origin}` returned"
            raise DeviceError(message, code=errors.EINVAL, call=call, device=self.name)
        # Note [Decommit protocol] (runtime/allocator/expandable_segments.py)
        self._leaving.append(entry)
        self.releases.note(key, nbytes)
        self.complete_releases(entry)

    cdef complete_releases(self, wanted):
        """Unmap the memory that is leaving. Where that is not possible, a later call does it."""
        cdef tuple leaving = tuple(self._leaving)
        cdef list interruptions = []
        try:
            self.drain()
        except WrongState:  # a queue's own thread cannot wait for it
            return
        except BaseException as error:
            interruptions.append(error)
            if not self.settled():
                raise
        for entry in leaving:
            try:
                self._leaving.remove(entry)
            except ValueError:  # another thread unmaps it
                continue
            try:
                self.unmap(entry, interruptions)
            except DeviceError:
                if entry is wanted:
                    raise
        raise_each(interruptions)

    cdef unmap(self, tuple entry, list interruptions):
        self.unmap_range(entry[2], entry[0], entry[1], interruptions)
        if entry[2] is not self._segments:
            return
        self.segment_bytes -= <Py_ssize_t>entry[1]
        try:
            self.on_released(entry[0])
        except BaseException as error:
            interruptions.append(error)

    cdef unmap_range(self, dict mappings, key, nbytes, list interruptions):
        """Unmap a range, which stays in the table if that fails."""
        cdef Py_ssize_t size = nbytes
        cdef uintptr_t start = key
        cdef int failed
        for _ in range(2):  # a signal handler may raise in the hook, which is idempotent
            try:
                self.on_unmapping(key, nbytes)
                break
            except BaseException as error:
                interruptions.append(error)
        with nogil:  # unmapping gigabytes takes milliseconds
            failed = munmap(<void*>start, _pages(size))
        if failed:  # the process is at its limit of mappings and cannot split one
            failure = OSError(libc.errno.errno, os.strerror(libc.errno.errno), "munmap")
            mappings[key] = nbytes
            self.on_mapped(key, nbytes, key)
            raise self.device_error(failure, "the memory cannot be unmapped")


cdef raise_each(list interruptions):
    """Raise the last of some exceptions now, and the others later: Note [Interrupts arrive late]."""
    if interruptions:
        last = interruptions.pop()
        raise_late([each for each in interruptions if is_interrupt(each)])
        raise last


cdef Py_ssize_t _pages(Py_ssize_t nbytes) noexcept nogil:
    cdef Py_ssize_t page = sysconf(_SC_PAGESIZE)
    return (nbytes + page - 1) // page * page


def map_aligned(nbytes, *, bint writable, bint charged):
    if nbytes <= 0:
        raise ValueError(f"cannot map {nbytes} bytes")
    cdef uintptr_t address = _map(min(nbytes, _TOO_LARGE), PROT_READ | PROT_WRITE if writable else PROT_NONE, charged)
    if address == 0:
        raise _mmap_error()
    return address


def unmap_all(list ranges not None):
    cdef uintptr_t address
    cdef Py_ssize_t nbytes
    cdef int failed
    while ranges:
        address, nbytes = ranges.pop()
        with nogil:
            failed = munmap(<void*>address, _pages(nbytes))
        if failed:
            raise OSError(libc.errno.errno, os.strerror(libc.errno.errno), "munmap")


cdef _mmap_error():
    return OSError(libc.errno.errno, os.strerror(libc.errno.errno), "mmap")


@cython.cdivision(True)
cdef uintptr_t _map(Py_ssize_t nbytes, int protection, bint charged) noexcept nogil:
    """Map zeroed memory. Return 0 and set errno if it fails."""
    if nbytes >= _TOO_LARGE:
        libc.errno.errno = libc.errno.ENOMEM
        return 0
    cdef Py_ssize_t length = _pages(nbytes), slack = _ALIGNMENT - sysconf(_SC_PAGESIZE)
    # Map too much and unmap both ends: mmap itself aligns only to a page.
    cdef int flags = MAP_PRIVATE | MAP_ANON | (0 if charged else MAP_NORESERVE)
    cdef void* base = mmap(NULL, length + slack, protection, flags, -1, 0)
    if base == MAP_FAILED:
        return 0
    cdef uintptr_t first = <uintptr_t>base
    cdef uintptr_t start = (first + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    cdef uintptr_t end = first + length + slack
    if start > first:
        munmap(base, start - first)
    if end > start + length:
        munmap(<void*>(start + length), end - start - length)
    if protection != PROT_NONE and nbytes >= _ALIGNMENT and FOREBAY_HUGE >= 0:
        madvise(<void*>start, length, FOREBAY_HUGE)  # as NumPy does for arrays of 4 MiB or more
    return start
