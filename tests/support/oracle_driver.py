"""A CUDA driver for forebay whose memory is that of the oracle's stand-in runtime, on which the real PyTorch runs.

PyTorch's streams are queues of the fake backend: work that forebay submits there runs when the test asks for it.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

from forebay.backends import emulated_driver
from forebay.errors import DeviceError
from forebay.testing.fake import FakeDriver
from forebay.testing.fake.backend import FakePort
from forebay.testing.fake.queue import FakeQueue

_OUT_OF_MEMORY = 2
_runtime = ctypes.CDLL("libcudart.so.13")


def _props(index, total):
    described = emulated_driver("cuda").describe(0)
    return replace(described, index=index, total_bytes=total, emulated=False, pooled_streams=0)


class OraclePort(FakePort):
    """One device. `calls` has the calls of PyTorch's allocator, too, as far as they reach the port."""

    def __init__(self, total, index, *, kind, clock):
        super().__init__(total, index, kind=kind, clock=clock)
        self.props = _props(index, total)
        self.external = {}
        self._sizes = {}

    def reserve(self, nbytes):
        with self.enter("reserve", nbytes):
            address = ctypes.c_void_p()
            assert not _runtime.cudaSetDevice(self.props.index)
            status = _runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes))
            if status == _OUT_OF_MEMORY:
                _runtime.cudaGetLastError()
                raise self._full(nbytes, "reserve")
            assert not status
            self._sizes[address.value] = nbytes
            self._reserved += nbytes
            return address.value

    def release(self, address):
        with self.enter("release", address):
            self._reserved -= self._sizes.pop(address)
            assert not _runtime.cudaFree(ctypes.c_void_p(address))

    def memory_info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert not _runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def external_queue(self, handle):
        if handle < 1 << 20:
            raise DeviceError(
                f"no stream has the handle {handle:#x}", code=400, call="external_queue", device=self.name
            )
        return self.external.setdefault(handle, FakeQueue(self, handle, 0))

    def synchronize(self):
        with self.enter("synchronize"):
            for queue in (*self._queues.values(), *self.external.values()):
                queue.timeline.finish()


class OracleDriver(FakeDriver):
    """The devices of the stand-in runtime."""

    def __init__(self):
        megabytes = int(os.environ.get("FAKE_CUDA_TOTAL_MB", "1024"))
        super().__init__(int(os.environ.get("FAKE_CUDA_DEVICES", "1")), megabytes << 20, kind="cuda")

    def describe(self, index):
        return _props(index, self._total)

    def open(self, index):
        self.ports.append(OraclePort(self._total, index, kind="cuda", clock=self.clock))
        return self.ports[-1]
