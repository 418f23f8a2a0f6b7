# cython: language_level=3
"""The context manager that makes a device current; documented in _device_context.pyi."""

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

from forebay.runtime.devices._thread_state cimport ThreadState

from forebay.runtime.devices.current import current_device, local


cdef class DeviceContext:
    """DeviceContext(device)\n--\n\nThe context manager. The first line is its signature, which `inspect` reads."""

    cdef public object idx, prev_idx
    cdef object before  # the current device at entry, which may be of another kind
    cdef dict devices  # of the kind, by index, if `before` is one of them; empty in a forked child

    def __cinit__(self):
        self.prev_idx = -1

    def __init__(self, device):
        self.idx = device if type(device) is int else self.kind.optional_index(device)

    def __enter__(self):
        cdef ThreadState state = local.state
        cdef object kind = self.kind
        cdef dict devices = kind.devices
        cdef PyObject* device
        self.before = state.device
        if type(self.idx) is int:
            device = PyDict_GetItem(devices, self.idx)
            if device is not NULL:
                self.prev_idx = state.exchange(<object>device)
                if self.prev_idx is not None:
                    self.devices = devices
                    return
        self.devices = None
        if self.before is None:  # exit restores the default device explicitly
            self.before = current_device()
        self.prev_idx = kind.exchange(self.idx)

    def __exit__(self, type, value, traceback):
        cdef ThreadState state = local.state
        cdef object left = None
        if state.device is not self.before:
            if self.devices:
                left = state.exchange(self.before)
            self.idx = self.kind.exchange(self.prev_idx, device=self.before) if left is None else left
        return False
