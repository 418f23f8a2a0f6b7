# Meter of the arenas of Python's object allocator. Part of _core.pyx.
#
# Python takes memory for small objects from the system in arenas of 1 MiB, and has an interface to replace that step,
# so that their sum costs nothing. Rejected: sys._debugmallocstats, which prints, and only at one moment.

cdef extern from "Python.h" nogil:
    ctypedef struct PyObjectArenaAllocator:
        void* ctx
        void* (*alloc)(void* ctx, size_t size) noexcept nogil
        void (*free)(void* ctx, void* memory, size_t size) noexcept nogil

    void PyObject_GetArenaAllocator(PyObjectArenaAllocator* allocator)
    void PyObject_SetArenaAllocator(PyObjectArenaAllocator* allocator)

cdef PyObjectArenaAllocator arena_source  # the one before, for ever
cdef int64_t arena_now = 0, arena_peak = 0


cdef void* counted_arena(void* ctx, size_t size) noexcept nogil:
    global arena_now, arena_peak
    cdef void* memory = arena_source.alloc(arena_source.ctx, size)
    if memory is not NULL:
        arena_now += size
        arena_peak = max(arena_peak, arena_now)
    return memory


cdef void free_arena(void* ctx, void* memory, size_t size) noexcept nogil:
    global arena_now
    arena_now -= size
    arena_source.free(arena_source.ctx, memory, size)


def meter_arenas():
    global arena_source, arena_now, arena_peak
    cdef PyObjectArenaAllocator counted
    PyObject_GetArenaAllocator(&counted)
    if counted.alloc is not counted_arena:
        arena_source = counted
        counted.ctx, counted.alloc, counted.free = NULL, counted_arena, free_arena
        PyObject_SetArenaAllocator(&counted)
    arena_now = arena_peak = 0


def arena_bytes(): return arena_now, arena_peak
