# NumPy's data allocations served from a pool (NEP 49). Part of _core.pyx.
#
# Hooks stack up: each forwards what it does not serve to what stood there before it, and takes back what is its own,
# known by its address. So arrays outlive any hook, and memory from before it is freed by whoever gave it.

import threading

from cpython.mem cimport PyMem_Free, PyMem_Malloc

cdef extern from "lender.hpp" namespace "penstock" nogil:
    cbool enter_ladder()
    void leave_ladder()

    ctypedef struct Functions:
        void* ctx
        void* (*malloc)(void* ctx, size_t size) noexcept nogil
        void* (*calloc)(void* ctx, size_t count, size_t each) noexcept nogil
        void* (*realloc)(void* ctx, void* memory, size_t size) noexcept nogil
        void (*free)(void* ctx, void* memory, size_t size) noexcept nogil

    ctypedef Record* (*Ask)(void* owner, size_t size, cbool* refused) noexcept

    cppclass Lender:
        Lender(NativePool* pool, uint64_t queue, Ask ask, void* owner, cbool pages) except +
        Functions stand_before(const Functions& below)
        cbool stands()
        void* owner()
        void serve(cbool on)
        cbool serving()
        void set_smallest(size_t size)
        size_t smallest()

cdef extern from "numpy/arrayobject.h":
    int _import_array() except -1
    object PyDataMem_SetHandler(object handler)
    object PyDataMem_GetHandler()
    PyObject* PyDataMem_DefaultHandler

cdef extern from "numpy/arrayobject.h" nogil:
    ctypedef struct Handler "PyDataMem_Handler":
        char[127] name
        uint8_t version

cdef extern from *:
    """
    static inline penstock::Functions* penstock_functions(PyDataMem_Handler* handler) {
      static_assert(sizeof(penstock::Functions) == sizeof(PyDataMemAllocator), "the same five words");
      return reinterpret_cast<penstock::Functions*>(&handler->allocator);
    }
    #if PY_VERSION_HEX >= 0x030D0000
    #define penstock_finalizing() Py_IsFinalizing()
    #else
    #define penstock_finalizing() _Py_IsFinalizing()
    #endif
    """
    bint penstock_finalizing()
    Functions* functions_of "penstock_functions"(Handler* handler) nogil
    bint unlikely(bint) nogil  # small arrays, the most, shall pay for a look and a jump
    void PyErr_Fetch(PyObject** kind, PyObject** error, PyObject** traceback)
    void PyErr_Restore(PyObject* kind, PyObject* error, PyObject* traceback)
    void PyErr_SetObject(object kind, object error)
    int Py_AddPendingCall(int (*function)(void*) noexcept with gil, void* argument)

_import_array()


@cython.final
cdef class NumpyHook:
    cdef unique_ptr[Lender] lender
    cdef readonly Pool pool
    cdef uint64_t queue
    cdef object below_capsule  # keeps what stood there before alive

    def __cinit__(self, Pool pool not None, uint64_t queue, size_t smallest, bint pages=False):
        self.pool, self.queue = pool, queue
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
        cdef Handler* default = <Handler*>PyCapsule_GetPointer(<object>PyDataMem_DefaultHandler, "mem_handler")
        functions_of(default)[0] = self.stand_before(functions_of(default)[0])

    def in_context(self):
        cdef Handler* found
        cdef Handler* made = <Handler*>PyMem_Malloc(sizeof(Handler))
        if made is NULL:
            raise MemoryError("no memory for a NumPy handler")
        self.below_capsule = PyDataMem_GetHandler()
        found = <Handler*>PyCapsule_GetPointer(self.below_capsule, "mem_handler")
        memset(made, 0, sizeof(Handler))
        memcpy(made.name, b"penstock", 8)
        made.version = 1
        functions_of(made)[0] = self.stand_before(functions_of(found)[0])
        return PyDataMem_SetHandler(PyCapsule_New(made, "mem_handler", drop_handler))

    cdef Functions stand_before(self, const Functions& below):
        if self.lender.get().stands():
            raise ValueError("this hook stands somewhere already: make another")
        Py_INCREF(self)  # everywhere: for good. In a context: until the last array made there is gone
        return self.lender.get().stand_before(below)

    cdef Record* ask(self, size_t size, cbool* refused) noexcept:
        cdef Block block
        cdef Record* record = NULL
        try:
            if not self.pool.waiting:
                record = self.pool.native.take(size, self.queue, self.pool.here(), 0)
            if record is NULL:
                block = self.pool.allocate(size, self.queue)
                record = block.record
                block.record = NULL  # NumPy's now
        except MemoryError as failure:
            failure.__context__ = None
            refusals.last = (size, failure.with_traceback(None))
            refused[0] = True
        except RecursionError:
            pass  # the program has no stack left for this
        except BaseException as failure:
            raise_later(failure)
        return record


cdef object refusals = threading.local()  # .last: how many bytes NumPy wanted in vain, and why


def take_numpy_refusal(nbytes):
    wanted, failure = getattr(refusals, "last", (None, None))
    if wanted != nbytes:
        return None
    del refusals.last
    return failure


def restore_numpy_handler(handler):
    PyDataMem_SetHandler(handler)


cdef void drop_handler(object capsule) noexcept:
    cdef Handler* handler = <Handler*>PyCapsule_GetPointer(capsule, "mem_handler")
    cdef PyObject* hook = <PyObject*>(<Lender*>functions_of(handler).ctx).owner()
    PyMem_Free(handler)
    Py_XDECREF(hook)


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


cdef Record* take_in_python(void* hook, size_t size, cbool* refused) noexcept with gil:
    """With a stack, or after growing. Null and not refused: this is no moment for Python, so ask below."""
    cdef PyObject* kind
    cdef PyObject* error
    cdef PyObject* traceback
    cdef Record* record
    if penstock_finalizing() or not enter_ladder():
        return NULL
    PyErr_Fetch(&kind, &error, &traceback)  # NumPy may be on its way out with an error
    record = (<NumpyHook>hook).ask(size, refused)
    PyErr_Restore(kind, error, traceback)
    leave_ladder()
    return record
