# cython: language_level=3
"""Device arguments, and the context manager that makes a device current; documented in _device_context.pyi."""

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

from forebay.runtime.devices._thread_state cimport ThreadState

from forebay._base.device_spec import Device
from forebay.runtime.devices.current import current_device, local


cdef class DeviceArguments:
    cdef str kind, prefix
    cdef dict opened, existing
    cdef object initialisation_of_kind

    def __cinit__(self, *_, **__):
        self.kind, self.prefix, self.opened, self.existing = "", ":", {}, {}

    def __init__(self, str kind not None, dict opened not None, initialisation):
        cdef dict existing = initialisation.devices
        if existing is None:
            raise TypeError("the devices of the kind must be a dict, not None")
        self.kind, self.prefix = kind, f"{kind}:"
        self.opened, self.existing, self.initialisation_of_kind = opened, existing, initialisation

    def known(self, device):
        return self.find(device, True)

    def known_by_index(self, device):
        return self.find(device, False)

    def spelled_index(self, device, bint optional=False):
        return self.index_of(device, optional)

    def select(self, device):
        cdef object index = self.index_of(device, False)
        cdef PyObject* found = PyDict_GetItem(self.existing, index) if index is not None else NULL
        cdef ThreadState state
        if found is NULL:
            return False
        state = local.state
        return state.exchange(<object>found) is not None

    cdef object find(self, device, bint optional):
        cdef object index
        cdef PyObject* found = NULL
        if device is None:
            return self.current()
        if type(device) is int:  # not bool, which equals an int
            found = PyDict_GetItem(self.opened, device)
        elif type(device) is str:
            found = PyDict_GetItem(self.opened, device)
            if found is NULL and optional and <str>device == self.kind:
                return self.current()
        elif type(device) is Device and <str>device.kind == self.kind:
            index = device.index
            if index is not None:
                found = PyDict_GetItem(self.opened, index)
            elif optional:
                return self.current()
        return self.usable(<object>found) if found is not NULL else None

    cdef object current(self):
        cdef ThreadState state = local.state
        cdef PyObject* found
        cdef object opened = state.opened
        if opened is not None and <str>opened.kind == self.kind:
            return opened
        found = PyDict_GetItem(self.opened, state.indices.get(self.kind, 0))
        return self.usable(<object>found) if found is not NULL else None

    cdef object usable(self, opened):
        return opened if <str>opened.kind == self.kind else None  # `kind` is empty if it is unusable

    cdef object index_of(self, device, bint optional):
        cdef object index
        cdef ThreadState state
        if type(device) is int:
            return device
        if type(device) is str:
            index = self.index_in(device)
            if index is not None:
                return index
            if <str>device != self.kind:
                return None
        elif type(device) is Device:
            if <str>device.kind != self.kind:
                return None
            index = device.index
            if index is not None:
                return index
        elif device is not None:
            return None
        if not optional or self.initialisation_of_kind is None or not self.initialisation_of_kind.done:
            return None
        state = local.state
        return state.indices.get(self.kind, 0)

    cdef object index_in(self, str device):
        """Return the index in a name, of one or two digits; None for all other spellings."""
        cdef Py_ssize_t at = len(self.prefix), digits = len(device) - at
        cdef int first, second
        if not 1 <= digits <= 2 or not device.startswith(self.prefix):
            return None
        first = <int>device[at] - c'0'
        if digits == 1:
            return first if 0 <= first <= 9 else None
        second = <int>device[at + 1] - c'0'
        return first * 10 + second if 1 <= first <= 9 and 0 <= second <= 9 else None


cdef class DeviceContext:
    """DeviceContext(device)\n--\n\nThe context manager. The first line is its signature, which `inspect` reads."""

    cdef public object idx, prev_idx
    cdef object before  # the current device at entry, which may be of another kind
    cdef dict devices  # of the kind, by index, if `before` is one of them; empty in a forked child

    def __cinit__(self):
        self.prev_idx = -1

    def __init__(self, device):
        cdef DeviceArguments kind = self.kind
        if kind is None:
            raise TypeError("a DeviceContext needs a class whose `kind` is not None")
        cdef object index = kind.index_of(device, True)
        self.idx = self.kind.optional_index(device) if index is None else index

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
