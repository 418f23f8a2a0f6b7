"""The stand-in in place of PyObjC's modules, for one test."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from support.software_metal import installed

KERNELS = """
#include <metal_stdlib>
using namespace metal;

kernel void add(device float* y [[buffer(0)]], constant float& a [[buffer(1)]], device const float* x [[buffer(2)]],
                uint i [[thread_position_in_grid]]) {
  y[i] += a * x[i];
}
kernel void count(device atomic_uint* out [[buffer(0)]]) {
  atomic_fetch_add_explicit(out, 1, memory_order_relaxed);
}
kernel void reverse(device uint* data [[buffer(0)]], threadgroup uint* copy [[threadgroup(0)]],
                    uint i [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  copy[i] = data[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  data[i] = copy[n - 1 - i];
}
kernel void diverge(device uint* data [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i == 0) threadgroup_barrier(mem_flags::mem_device);
  data[i] = i;
}
"""


class Scene(SimpleNamespace):
    """A device with a queue, and short names for what tests do most."""

    def buffer(self, length=64, options=0):
        return self.device.newBufferWithLength_options_(length, options)

    def heap(self, size=1 << 20, **properties):
        descriptor = self.Metal.MTLHeapDescriptor.new()
        descriptor.setSize_(size)
        for name, value in {"storageMode": 0, **properties}.items():
            getattr(descriptor, f"set{name[0].upper()}{name[1:]}_")(value)
        return self.device.newHeapWithDescriptor_(descriptor)

    def values(self, buffer, code="I"):
        return memoryview(buffer.contents().as_buffer(buffer.length())).cast(code)

    def pipeline(self, name, **properties):
        library, error = self.device.newLibraryWithSource_options_error_(KERNELS, None, None)
        assert error is None, error.localizedDescription()
        descriptor = self.Metal.MTLComputePipelineDescriptor.new()
        descriptor.setComputeFunction_(library.newFunctionWithName_(name))
        for key, value in properties.items():
            getattr(descriptor, f"set{key[0].upper()}{key[1:]}_")(value)
        create = self.device.newComputePipelineStateWithDescriptor_options_reflection_error_
        return create(descriptor, 0, None, None)[0]

    def copy(self, commands, source, destination, size=64):
        encoder = commands.blitCommandEncoder()
        try:
            encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(source, 0, destination, 0, size)
        finally:
            encoder.endEncoding()

    def fill(self, commands, buffer, value=1, extent=(0, 64)):
        encoder = commands.blitCommandEncoder()
        try:
            encoder.fillBuffer_range_value_(buffer, extent, value)
        finally:
            encoder.endEncoding()

    def compute(self, name="add", commands=None):
        """Return an encoder with a pipeline whose arguments are bound."""
        encoder = (commands or self.queue.commandBuffer()).computeCommandEncoder()
        encoder.setComputePipelineState_(self.pipeline(name))
        for index in (0, 2):
            encoder.setBuffer_offset_atIndex_(self.buffer(), 0, index)
        encoder.setBytes_length_atIndex_(struct.pack("f", 2), 4, 1)
        encoder.setThreadgroupMemoryLength_atIndex_(64, 0)
        return encoder

    def done(self, commands):
        """Commit commands and wait for them; return their error."""
        commands.commit()
        commands.waitUntilCompleted()
        return commands.error()


@pytest.fixture
def machine():
    """Which machine the stand-in is, and changes to it."""
    return {}


@pytest.fixture
def metal(machine):
    with installed(**machine) as control:
        control.over_retains = False  # as PyObjC 13
        import Metal
        import objc

        with objc.autorelease_pool():
            device = Metal.MTLCreateSystemDefaultDevice()
            scene = Scene(Metal=Metal, objc=objc, control=control, device=device, queue=device.newCommandQueue())
            yield scene
            scene.__dict__.clear()
