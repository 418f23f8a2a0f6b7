"""Errors of signal handlers in functions that cannot raise, such as a destructor.

# Note [Interrupts arrive late]
A destructor, or a callback of C++ code, that executes Python instructions may be interrupted there by a signal handler
that raises, and cannot pass on the exception. What was interrupted is repeated, so it must be repeatable: it does its
work before it forgets that there is work, and each of its steps may come twice. The exceptions are raised again in the
main thread, where signal handlers run, before one of the next instructions, but only when the repeated function has
returned: the first instruction of a function is one of those, so that it would never get further. Other exceptions are
faults, and are reported where they occur, if they occur twice: another thread may have raised the first one here.
Python destructors (`__del__` in a .py file) cannot do this, so classes with a destructor derive from `Disposable`.
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

    /* Raise the first exception of a list, and leave the others to later calls. */
    static int forebay_raise_late(void* argument) {
        PyObject* errors = (PyObject*)argument;
        PyObject* error = PyList_GetItem(errors, 0);
        if (error != NULL) {
            Py_INCREF(error);
            PyList_SetSlice(errors, 0, 1, NULL);
            PyErr_Clear();
            PyErr_SetObject((PyObject*)Py_TYPE(error), error);
            Py_DECREF(error);
        }
        if (PyList_Size(errors) == 0 || Py_AddPendingCall(forebay_raise_late, errors) != 0) Py_DECREF(errors);
        return -1;
    }

    /* Raise the exceptions of a list later. Return 0 if that is not possible. */
    static inline int forebay_postpone(PyObject* errors) {
        if (!forebay_is_main_thread()) return 0;
        Py_INCREF(errors);
        if (Py_AddPendingCall(forebay_raise_late, (void*)errors) == 0) return 1;
        Py_DECREF(errors);
        return 0;
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


cdef inline int call_later(void* function) noexcept:
    call_in_destructor(<object>function)
    Py_DECREF(<object>function)
    return 0


cdef inline void call_in_destructor(function) noexcept:
    """Call a function until it is not interrupted; later if it is interrupted all the time."""
    cdef list interrupts = []
    cdef bint failed = False
    cdef PyObject* handled = PyErr_GetHandledException()
    fault = None
    for _attempt in range(MAX_INTERRUPTS):
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
    else:
        Py_INCREF(function)
        if Py_AddPendingCall(call_later, <void*>function):
            Py_DECREF(function)
    if fault is not None:
        Py_SetRecursionLimit(Py_GetRecursionLimit() - MORE_LEVELS)
        if failed or not is_recursion(fault):
            write(fault)
    raise_late(interrupts)
    Py_XDECREF(handled)
