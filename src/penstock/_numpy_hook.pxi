# NumPy's data allocations served from a pool (NEP 49). Part of _core.pyx.
#
# Hooks stack up: each forwards what it does not serve to what stood there before it, and takes back what is its own,
# known by its address. So arrays outlive any hook, and memory from before it is freed by whoever gave it.

from cpython.mem cimport PyMem_Free, PyMem_Malloc

cdef extern from "numpy/arrayobject.h":
    int _import_array() except -1
    object PyDataMem_SetHandler(object handler)
    object PyDataMem_GetHandler()
    PyObject* PyDataMem_DefaultHandler

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define penstock_finalizing() Py_IsFinalizing()
    #else
    #define penstock_finalizing() _Py_IsFinalizing()
    #endif
    """
    bint penstock_finalizing()

cdef extern from "lent.hpp" namespace "penstock" nogil:
    cbool enter_ladder()
    void leave_ladder()
    size_t usable_size(void* memory)
    void zero(void* memory, size_t nbytes)

_import_array()

cdef struct Hook:
    PyObject* owner  # the NumpyHook
    NativePool* native
    Allocator below
    size_t smallest
    bint serving
    bint malloc_below  # memory from below is malloc's, so its size can be asked


@cython.final
cdef class NumpyHook:
    cdef Hook hook
    cdef readonly Pool pool
    cdef object below_capsule  # keeps `below` alive

    def __init__(self, Pool pool not None, size_t smallest):
        self.pool = pool
        self.hook.owner, self.hook.native, self.hook.smallest = <PyObject*>self, &pool.native, max(smallest, <size_t>1)

    @property
    def serving(self): return self.hook.serving

    @serving.setter
    def serving(self, bint on): self.hook.serving = on

    def everywhere(self):
        cdef Handler* default = <Handler*>PyCapsule_GetPointer(<object>PyDataMem_DefaultHandler, "mem_handler")
        self.stand_before(default.allocator, True)
        default.allocator = Allocator(&self.hook, hook_malloc, hook_calloc, hook_realloc, hook_free)

    def in_context(self):
        cdef Handler* made = <Handler*>PyMem_Malloc(sizeof(Handler))
        if made is NULL:
            raise MemoryError("no memory for a NumPy handler")
        memset(made, 0, sizeof(Handler))
        memcpy(made.name, b"penstock", 8)
        made.version = 1
        made.allocator = Allocator(&self.hook, hook_malloc, hook_calloc, hook_realloc, hook_free)
        self.below_capsule = PyDataMem_GetHandler()
        self.stand_before(
            (<Handler*>PyCapsule_GetPointer(self.below_capsule, "mem_handler")).allocator,
            self.below_capsule is <object>PyDataMem_DefaultHandler,
        )
        return PyDataMem_SetHandler(PyCapsule_New(made, "mem_handler", drop_handler))

    cdef stand_before(self, Allocator below, bint malloc_below):
        if self.hook.below.malloc is not NULL:
            raise ValueError("this hook stands somewhere already: make another")
        self.hook.below, self.hook.malloc_below, self.hook.serving = below, malloc_below, True
        Py_INCREF(self)  # everywhere: for good. In a context: until the last array made there is gone

    cdef Record* ask(self, size_t size, bint* refused):
        global refusal
        cdef Block block
        cdef Record* record = NULL
        refusal = None
        try:
            block = self.pool._refill(size, 0)
            record = block.record
            block.record = NULL  # NumPy's now
        except MemoryError as failure:
            refusal, refused[0] = failure.with_traceback(None), True
        except BaseException:
            PyErr_WriteUnraisable(self)
        return record


cdef object refusal = None  # why NumPy was last answered with no memory


def take_numpy_refusal():
    global refusal
    taken, refusal = refusal, None
    return taken


def restore_numpy_handler(handler):
    PyDataMem_SetHandler(handler)


cdef void drop_handler(object capsule) noexcept:
    cdef Handler* handler = <Handler*>PyCapsule_GetPointer(capsule, "mem_handler")
    Py_DECREF(<object>(<Hook*>handler.allocator.ctx).owner)
    PyMem_Free(handler)


cdef Record* take_in_python(Hook* hook, size_t size, bint* refused) noexcept with gil:
    """With a stack, or after growing. Null and not refused: this is no moment for Python, so ask below."""
    cdef Record* record
    cdef NumpyHook owner
    if penstock_finalizing() or not enter_ladder():
        return NULL
    owner = <NumpyHook>hook.owner
    record = hook.native.take(size, 0, owner.pool.here())
    if record is NULL:
        record = owner.ask(size, refused)
    leave_ladder()
    return record


cdef void* lend(Hook* hook, size_t size, bint zeroed) noexcept nogil:
    cdef bint refused = False
    cdef bint touched
    cdef Record* record = NULL
    if size >= hook.smallest and hook.serving:
        if not hook.native.recording():
            record = hook.native.take(size, 0, 0)
        if record is NULL:
            record = take_in_python(hook, size, &refused)
    if record is not NULL:
        if zeroed and not record.untouched:
            zero(<void*>record.address, size)
        return <void*>record.address
    if refused:
        return NULL
    return hook.below.calloc(hook.below.ctx, 1, size) if zeroed else hook.below.malloc(hook.below.ctx, size)


cdef void* hook_malloc(void* ctx, size_t size) noexcept nogil:
    return lend(<Hook*>ctx, size, False)


cdef void* hook_calloc(void* ctx, size_t count, size_t each) noexcept nogil:
    if each and count > (<size_t>-1) // each:
        return NULL
    return lend(<Hook*>ctx, count * each, True)


cdef void hook_free(void* ctx, void* memory, size_t size) noexcept nogil:
    cdef Hook* hook = <Hook*>ctx
    cdef Record* record = hook.native.live_at(<uint64_t>memory)
    if record is NULL:
        hook.below.free(hook.below.ctx, memory, size)
    else:
        hook.native.give(record)  # no other queue uses what NumPy holds


cdef void* hook_realloc(void* ctx, void* memory, size_t size) noexcept nogil:
    cdef Hook* hook = <Hook*>ctx
    cdef Record* record = hook.native.live_at(<uint64_t>memory)  # null is no block's address
    cdef size_t held
    cdef void* moved
    if record is not NULL:
        if hook.native.resize(record, size, record.stack):
            return memory
        held = record.size
    elif memory is NULL:
        return lend(hook, size, False)
    elif size < hook.smallest or not hook.serving or not hook.malloc_below:
        return hook.below.realloc(hook.below.ctx, memory, size)
    else:
        held = usable_size(memory)
    moved = lend(hook, size, False)
    if moved is not NULL:
        memcpy(moved, memory, min(held, size))
        hook_free(ctx, memory, held)
    return moved
