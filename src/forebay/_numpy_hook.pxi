# NumPy's data allocations served from a pool (NEP 49), by native/numpy/numpy_allocator.hpp. Part of _core.pyx.

import threading

_import_array()
numpy_refusals = threading.local()  # .last: how many bytes NumPy wanted in vain, and why


@cython.final
cdef class NumpyHook:
    cdef unique_ptr[Lender] lender
    cdef readonly Pool pool
    cdef Handler handler  # what NumPy has of it where it stands in a context
    cdef object below  # keeps what stood there before alive

    def __cinit__(self, Pool pool not None, uint64_t queue, size_t smallest, bint pages=False):
        self.pool = pool
        self.lender.reset(new Lender(&pool.native, queue, take_in_python, <void*>self, pages))
        self.smallest = smallest

    @property
    def serving(self): return self.lender.get().serving()
    @serving.setter
    def serving(self, bint on): self.lender.get().serve(on)
    @property
    def smallest(self): return self.lender.get().smallest()
    @smallest.setter
    def smallest(self, size_t nbytes): self.lender.get().set_smallest(nbytes)

    def everywhere(self):
        default = <object>PyDataMem_DefaultHandler
        self.stand_before(default, handler_in(default))

    def in_context(self):
        before = PyDataMem_GetHandler()
        self.stand_before(before, &self.handler)
        return PyDataMem_SetHandler(PyCapsule_New(&self.handler, "mem_handler", drop_hook))

    cdef stand_before(self, object below, Handler* place):
        place.functions = self.lender.get().stand_before(handler_in(below).functions)
        self.below = below
        Py_INCREF(self)  # everywhere: for good. In a context: until the last array made there is gone

    cdef Record* ask(self, uint64_t queue, size_t size, cbool* refused) noexcept:
        cdef Block block
        cdef Record* record = NULL
        try:
            if self.pool.waiting:
                self.pool._settle(queue)
            record = self.pool.native.take(size, queue, self.pool.here(), 0, False)
            if record is NULL:
                block = self.pool._refill(size, queue, 0)  # in no home but the common one, wherever the program is
                record = block.record
                block.record = NULL  # NumPy's now
        except MemoryError as failure:
            failure.__context__ = None
            numpy_refusals.last = (size, failure.with_traceback(None))
            refused[0] = True
        except RecursionError:
            pass  # the program has no stack left for this
        except BaseException as failure:
            raise_later(failure)
        return record


def restore_numpy_handler(handler): PyDataMem_SetHandler(handler)


cdef Handler* handler_in(object capsule) except NULL:
    return <Handler*>PyCapsule_GetPointer(capsule, "mem_handler")


cdef void drop_hook(object capsule) noexcept:
    Py_XDECREF((<Lender*>handler_in(capsule).functions.ctx).owner())


cdef void raise_later(object failure) noexcept:
    """Ctrl-C, or what a signal's handler raised: it only happened while we asked. Raised when NumPy has its memory."""
    if threading.get_ident() == threading.main_thread().ident and Py_AddPendingCall(raise_now, <void*>failure) == 0:
        Py_INCREF(failure)
    else:
        PyErr_SetObject(type(failure), failure)
        PyErr_WriteUnraisable(None)


cdef int raise_now(void* failure) noexcept with gil:
    PyErr_SetObject(type(<object>failure), <object>failure)
    Py_DECREF(<object>failure)
    return -1


cdef Record* take_in_python(void* hook, uint64_t queue, size_t size, cbool* refused) noexcept with gil:
    """With a stack, or after growing. Null and not refused: this is no moment for Python, so ask below."""
    cdef PyObject* pending[3]
    cdef Record* record
    if forebay_finalizing():
        return NULL
    PyErr_Fetch(&pending[0], &pending[1], &pending[2])  # NumPy may be on its way out with an error
    record = (<NumpyHook>hook).ask(queue, size, refused)
    PyErr_Restore(pending[0], pending[1], pending[2])
    return record
