# cython: language_level=3, autotestdict=False
"""Destructors that no signal handler or RecursionError can split; documented in _disposal.pyi."""

from forebay._late_errors cimport call_in_destructor, is_interrupt

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000
    #define forebay_is_finalizing _Py_IsFinalizing
    #else
    #define forebay_is_finalizing Py_IsFinalizing
    #endif
    """
    bint is_finalizing "forebay_is_finalizing"()


cdef class Disposable:  # without fields, so that any other class can be a second base
    """Base class of objects with a destructor, which calls `_dispose`.

    `_dispose` is called again after an interrupt, and once more after a fault, until it returns: it must be repeatable,
    and expect attributes that an interrupted `__init__` has not set. It is not called while the interpreter exits.
    """

    def __del__(self):
        if not is_finalizing():  # the names of modules may be gone then
            call_in_destructor(self._dispose)

    def _dispose(self): raise NotImplementedError


def interrupts(error):
    return is_interrupt(error)


def call_with_all(function, list arguments not None):
    while arguments:
        function(arguments.pop())


def call_taken(take, *arguments):
    function = take(*arguments)
    if function is not None:
        function()


def move_all(list source not None, target):
    target.extend(source)
    source.clear()
