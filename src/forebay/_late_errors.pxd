"""Errors of signal handlers in functions that cannot raise, such as a destructor.

# Note [Interrupts arrive late]
A destructor, or a callback of C++ code, that executes Python instructions may be interrupted there by a signal handler
that raises, and cannot pass on the exception. What was interrupted is repeated, so it must be repeatable: it does its
work before it forgets that there is work, and each of its steps may come twice. The exceptions are raised again in the
main thread, where signal handlers run, before one of the next instructions, but only when the repeated function has
returned: the first instruction of a function is one of those, so that it would never get further. Other exceptions are
faults, and are reported where they occur, if they occur twice: another thread may have raised the first one here.
Python destructors (`__del__` in a .py file) cannot do this, so classes with a destructor derive from `Disposable`.

CPython has room for 32 pending calls, so the exceptions of an extension module share one. If others fill the room, and
none of them can run now, the exceptions are passed to sys.unraisablehook. CPython also passes those to that hook which
arrive in a destructor or a callback of the program that it calls by itself (of a weak reference, of the garbage
collector), as any of a signal handler. Up to CPython 3.12, a signal that the system delivers to another thread
delays the pending calls, until the main thread waits for the GIL or gets a signal itself: threads that live long block
signals.
Test: tests/backends/common/test_disposal.py::test_interrupted_destructor_is_repeated
"""

from cpython.object cimport PyObject

cdef extern from *:
    """
    #include <pthread.h>
    #include <unistd.h>
    #if defined(__linux__)
    #include <sys/syscall.h>
    #endif

    static inline int forebay_is_main_thread(void) {
    #if defined(__APPLE__)
        return pthread_main_np();
    #elif defined(__linux__)
        return syscall(SYS_gettid) == getpid();
    #else
        return 0;
    #endif
    }

    /* Exceptions that a pending call will raise, oldest first; NULL if there is none. Only the main thread uses it. */
    static PyObject* forebay_late = NULL;

    static int forebay_raise_late(void* unused) {
        PyObject* errors = forebay_late;
        PyObject* error = PyList_GetItem(errors, 0);
        (void)unused;
        Py_XINCREF(error);
        PyList_SetSlice(errors, 0, 1, NULL);
        if (PyList_Size(errors) == 0 || Py_AddPendingCall(forebay_raise_late, NULL) != 0) {
            forebay_late = NULL;
            for (Py_ssize_t at = 0; at < PyList_Size(errors); ++at) {  /* there was no room */
                PyObject* each = PyList_GetItem(errors, at);
                PyErr_SetObject((PyObject*)Py_TYPE(each), each);
                PyErr_WriteUnraisable(NULL);
            }
            Py_DECREF(errors);
        }
        if (error != NULL) {
            PyErr_Clear();
            PyErr_SetObject((PyObject*)Py_TYPE(error), error);
            Py_DECREF(error);
        }
        return -1;
    }

    /* Raise the exceptions of a list later. Return 0 if that is not possible. */
    static inline int forebay_postpone(PyObject* errors) {
        if (!forebay_is_main_thread()) return 0;
        if (forebay_late != NULL) {
            if (PyList_SetSlice(forebay_late, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, errors) == 0) return 1;
            PyErr_Clear();
            return 0;
        }
        if (Py_AddPendingCall(forebay_raise_late, NULL) != 0) return 0;
        forebay_late = Py_NewRef(errors);
        return 1;
    }
    """
    bint postpone_all "forebay_postpone"(list errors)
    void PyErr_SetObject(object kind, object value)
    void PyErr_WriteUnraisable(object where)
    int Py_GetRecursionLimit()
    void Py_SetRecursionLimit(int levels)
    int Py_AddPendingCall(int (*function)(void*) noexcept, void* argument)
    void Py_INCREF(object)
    void Py_DECREF(object)
    void Py_XDECREF(PyObject*)
    PyObject* PyErr_GetHandledException()

cdef enum:
    MAX_INTERRUPTS = 100  # of one destructor or callback
    MORE_LEVELS = 200  # of calls, for a destructor that runs close to the limit of recursion


cdef inline list handlers():
    """Return the code objects of the signal handlers that are Python functions."""
    import _signal  # not `signal`, whose functions are Python code that can be interrupted
    codes = []
    for number in range(1, _signal.NSIG):
        handler = _signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # of a functools.partial
        if callable(handler) and not hasattr(handler, "__code__"):
            handler = getattr(type(handler), "__call__", None)
        codes.append(getattr(handler, "__code__", None))
    return codes


cdef inline bint is_interrupt(failure) noexcept:
    """Return True for an exception that a signal handler has raised, which may also be a subclass of Exception."""
    if not isinstance(failure, Exception):
        return True
    try:
        trace, codes = failure.__traceback__, handlers()
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                return True
            trace = trace.tb_next
    except BaseException:  # of a handler that is an unusual object
        pass
    return False


cdef inline bint add_interrupts(list interrupts, failure, PyObject* handled) noexcept:
    """Append the interrupts of an exception and of its context, oldest first. Return True if it is one itself.

    `handled` is the exception that was being handled before, which is the context of the others.
    """
    cdef list found = []
    each = failure
    while each is not None and <PyObject*>each is not handled:  # one may come while another is on its way
        if is_interrupt(each):
            found.insert(0, each)
        each = each.__context__
    for each in found:
        each.__context__ = None  # it arrives by itself
        interrupts.append(each)
    return bool(found) and found[len(found) - 1] is failure


cdef inline void write(failure) noexcept:
    """Pass an exception to sys.unraisablehook."""
    PyErr_SetObject(type(failure), failure)
    PyErr_WriteUnraisable(None)


cdef inline void raise_late(list interrupts) noexcept:
    """Raise interrupts later, each once."""
    if interrupts and not postpone_all(interrupts):
        for failure in interrupts:
            write(failure)


cdef inline void report(failure) noexcept:
    """Raise an interrupt later. Pass a fault to sys.unraisablehook."""
    if is_interrupt(failure):
        raise_late([failure])
    else:
        write(failure)


cdef inline bint is_recursion(failure) noexcept:
    try:
        return isinstance(failure, RecursionError) or "RecursionError" in str(failure)  # an error of ctypes names it
    except BaseException:
        return False


cdef inline int call_late(void* function) noexcept:
    call_in_destructor(<object>function)
    Py_DECREF(<object>function)
    return 0


cdef inline bint call_later(function) noexcept:
    """Call a function before one of the next instructions. Return False if there is no room for a pending call."""
    Py_INCREF(function)
    if Py_AddPendingCall(call_late, <void*>function) == 0:
        return True
    Py_DECREF(function)
    return False


cdef inline void call_in_destructor(function) noexcept:
    """Call a function until it is not interrupted; later if it is interrupted all the time."""
    cdef list interrupts = []
    cdef bint failed = False
    cdef Py_ssize_t attempts = 0
    cdef PyObject* handled = PyErr_GetHandledException()
    fault = None
    while True:
        try:
            function()
            break
        except BaseException as failure:
            if add_interrupts(interrupts, failure, handled):
                pass
            elif fault is not None:
                fault, failed = failure, True
                break
            else:
                fault = failure
                Py_SetRecursionLimit(Py_GetRecursionLimit() + MORE_LEVELS)
        attempts += 1
        if attempts >= MAX_INTERRUPTS and call_later(function):
            break
    if fault is not None:
        Py_SetRecursionLimit(Py_GetRecursionLimit() - MORE_LEVELS)
        if failed or not is_recursion(fault):
            write(fault)
    raise_late(interrupts)
    Py_XDECREF(handled)
