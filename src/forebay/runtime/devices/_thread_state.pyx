# cython: language_level=3
"""The current device and streams of one thread; documented in _thread_state.pyi."""

cimport cython


@cython.final
cdef class ThreadState:
    def __cinit__(self):
        self.indices, self.streams, self.stream_stack, self.named = {}, {}, [], {}

    cpdef make_current(self, device):
        self.indices[device.kind] = device.index or 0
        self.device, self.explicit = device, True
        self.opened = self.stream = None
        self.named.clear()

    cpdef exchange(self, device):
        cdef object before = self.device, index
        if before is None or <str>before.kind != <str>device.kind:
            return None
        index = before.index
        if before is not device and index != device.index:
            self.make_current(device)
        return index

    def clear_cache(self):
        self.opened = self.stream = None
        self.named.clear()

    def save(self):
        return self.device if self.explicit else None, dict(self.indices), dict(self.streams)
