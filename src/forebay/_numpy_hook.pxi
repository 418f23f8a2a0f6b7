# NumPy data allocations from a pool (NEP 49), implemented in native/numpy/numpy_allocator.hpp. Part of _core.pyx.

import threading

_import_array()
numpy_failures = threading.local()


@cython.final
cdef class NumpyHook:
    cdef unique_ptr[NumpyAllocator] allocator
    cdef readonly Pool pool
    cdef Handler handler  # NumPy's handler struct if the hook is installed in a context
    cdef object previous  # keeps the previous handler alive
    cdef Pool sampled  # the pool of the sample

    def __cinit__(self, Pool pool not None, uint64_t queue, size_t smallest, bint pages=False):
        self.pool = pool
        self.allocator.reset(new NumpyAllocator(&pool.native, queue, allocate_in_python, <void*>self, pages))
        self.smallest = smallest

    @property
    def serving(self): return self.allocator.get().serving()
    @serving.setter
    def serving(self, bint on): self.allocator.get().set_serving(on)
    @property
    def smallest(self): return self.allocator.get().smallest()
    @smallest.setter
    def smallest(self, size_t nbytes): self.allocator.get().set_smallest(nbytes)

    def forwarded(self):
        cdef ForwardedRequests seen = self.allocator.get().forwarded()
        return seen.count, seen.bytes, max(seen.live, 0), seen.peak

    def reset_forwarded(self): self.allocator.get().reset_forwarded()

    def sample(self, Pool samples not None, uint64_t mean, uint64_t seed):
        self.allocator.get().sample(&samples.native, mean, seed, stack_in_python)
        self.sampled = samples  # the one before is no longer used

    def everywhere(self):
        default = <object>PyDataMem_DefaultHandler
        self.install_over(default, handler_in(default))

    def in_context(self):
        previous = PyDataMem_GetHandler()
        self.install_over(previous, &self.handler)
        return PyDataMem_SetHandler(PyCapsule_New(&self.handler, "mem_handler", release_hook))

    cdef install_over(self, object previous, Handler* target):
        target.functions = self.allocator.get().install_over(handler_in(previous).functions)
        self.previous = previous
        Py_INCREF(self)  # `everywhere`: forever; `in_context`: until the last array of the context is freed

    cdef Record* allocate(self, uint64_t queue, size_t size, cbool* refused) noexcept:
        cdef Block block
        cdef Record* record = NULL
        try:
            if self.pool.has_pending_frees:
                self.pool._process_pending_frees(queue)
            record = self.pool.native.try_allocate(size, queue, self.pool.current_stack(), 0, False)
            if record is NULL:
                block = self.pool._refill(size, queue, 0)  # from the default pool, even inside a private pool
                if block is None or block.pool is not self.pool or block.live_record().requested < size:
                    raise TypeError(f"_refill() must return a live block of this pool with {size} bytes")
                record = block.record
                block.record = NULL  # owned by NumPy now
        except MemoryError as failure:
            failure.__context__ = None
            numpy_failures.last = (size, failure.with_traceback(None))
            refused[0] = True
        except RecursionError:
            pass  # no stack left for the refill: the previous allocator handles the request
        except BaseException as failure:
            raise_later(failure)
        return record

    cdef uint32_t sampled_stack(self) noexcept:
        try:
            return self.sampled.current_stack()
        except BaseException as failure:
            raise_later(failure)
        return 0


def restore_numpy_handler(handler):
    handler_in(handler)  # NumPy accepts any object, and fails at the next array
    PyDataMem_SetHandler(handler)


cdef Handler* handler_in(object capsule) except NULL:
    return <Handler*>PyCapsule_GetPointer(capsule, "mem_handler")


cdef void release_hook(object capsule) noexcept:
    Py_XDECREF((<NumpyAllocator*>handler_in(capsule).functions.ctx).owner())


cdef void raise_later(object failure) noexcept:
    """Raise an unrelated exception (Ctrl-C, a signal handler's) in the main thread once NumPy has its memory."""
    if threading.get_ident() == threading.main_thread().ident and Py_AddPendingCall(raise_now, <void*>failure) == 0:
        Py_INCREF(failure)
    else:
        PyErr_SetObject(type(failure), failure)
        PyErr_WriteUnraisable(None)


cdef int raise_now(void* failure) noexcept with gil:
    PyErr_SetObject(type(<object>failure), <object>failure)
    Py_DECREF(<object>failure)
    return -1


cdef Record* allocate_in_python(void* hook, uint64_t queue, size_t size, cbool* refused) noexcept with gil:
    """Allocate with a recorded stack, or after a refill. Null without `refused`: Python cannot run now."""
    cdef PyObject* pending[3]
    cdef Record* record
    if forebay_finalizing():
        return NULL
    PyErr_Fetch(&pending[0], &pending[1], &pending[2])  # NumPy may allocate while an exception propagates
    record = (<NumpyHook>hook).allocate(queue, size, refused)
    PyErr_Restore(pending[0], pending[1], pending[2])
    return record


cdef cbool stack_in_python(void* hook, uint32_t* stack) noexcept with gil:
    """Find the caller's stack for the sample. False: Python cannot run now."""
    cdef PyObject* pending[3]
    if forebay_finalizing():
        return False
    PyErr_Fetch(&pending[0], &pending[1], &pending[2])  # NumPy may allocate while an exception propagates
    stack[0] = (<NumpyHook>hook).sampled_stack()
    PyErr_Restore(pending[0], pending[1], pending[2])
    return True
