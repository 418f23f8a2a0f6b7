"""Errors of signal handlers in functions that cannot raise, such as a destructor.

# Note [Interrupts arrive late]
A destructor, or a callback of C++ code, that executes Python instructions may be interrupted there by a signal handler
that raises, and cannot pass on the exception. It is raised again in the main thread, where signal handlers run, before
one of the next instructions. What was interrupted is repeated, so it must be repeatable. Other exceptions, which are
subclasses of Exception, are faults, and are reported where they occur.
"""

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

    static int forebay_raise_late(void* error) {
        PyErr_SetObject((PyObject*)Py_TYPE((PyObject*)error), (PyObject*)error);
        Py_DECREF((PyObject*)error);
        return -1;
    }

    /* Raise an exception later. Return 0 if that is not possible. */
    static inline int forebay_postpone(PyObject* error) {
        if (!forebay_is_main_thread()) return 0;
        Py_INCREF(error);
        if (Py_AddPendingCall(forebay_raise_late, (void*)error) == 0) return 1;
        Py_DECREF(error);
        return 0;
    }
    """
    bint postpone "forebay_postpone"(object error)
    void PyErr_SetObject(object kind, object value)
    void PyErr_WriteUnraisable(object where)

cdef enum:
    MAX_INTERRUPTS = 100  # of one destructor or callback


cdef inline bint report(failure) noexcept:
    """Raise an interrupt later. Pass a fault to sys.unraisablehook, and return True."""
    cdef bint is_fault = isinstance(failure, Exception)
    if is_fault or not postpone(failure):
        PyErr_SetObject(type(failure), failure)
        PyErr_WriteUnraisable(None)
    return is_fault


cdef inline void call_in_destructor(function) noexcept:
    """Call a function until it is not interrupted."""
    for _attempt in range(MAX_INTERRUPTS):
        try:
            function()
            break
        except BaseException as failure:
            if report(failure):
                break
