"""Buffers, heaps, the capacity of a device, and when objects die."""

from __future__ import annotations

import ctypes
import mmap

import pytest

GIB = 1 << 30


def test_new_buffers_are_full_of_zeros_and_those_of_heaps_are_not(metal):
    assert bytes(metal.values(metal.buffer())) == bytes(64)
    assert bytes(metal.values(metal.heap().newBufferWithLength_options_(64, 0))) == b"\xa5" * 64


def test_gpu_addresses_are_no_addresses_of_the_host(metal):
    heap = metal.heap()
    first, second = (heap.newBufferWithLength_options_(300, 0) for _ in range(2))
    assert second.gpuAddress() - first.gpuAddress() == second.heapOffset() - first.heapOffset() == 512
    assert first.gpuAddress() > 1 << 48


def test_automatic_heap_uses_the_first_gap(metal):
    heap = metal.heap(16384)
    buffers = [heap.newBufferWithLength_options_(4096, 0) for _ in range(4)]
    assert heap.newBufferWithLength_options_(256, 0) is None
    assert (heap.usedSize(), heap.maxAvailableSizeWithAlignment_(256)) == (16384, 0)
    del buffers[1]
    assert heap.maxAvailableSizeWithAlignment_(256) == 4096
    assert heap.newBufferWithLength_options_(4096, 0).heapOffset() == 4096


def test_aliasable_buffer_gives_its_range_back(metal):
    heap = metal.heap(16384)
    buffer = heap.newBufferWithLength_options_(16384, 0)
    buffer.makeAliasable()
    assert buffer.isAliasable()
    assert heap.newBufferWithLength_options_(16384, 0) is not None


def test_placement_heap_takes_overlapping_buffers(metal):
    heap = metal.heap(16384, type=metal.Metal.MTLHeapTypePlacement)
    size, align = metal.device.heapBufferSizeAndAlignWithLength_options_(1000, 0)
    first = heap.newBufferWithLength_options_offset_(1000, 0, align)
    second = heap.newBufferWithLength_options_offset_(1000, 0, align)
    metal.values(first, "B")[0] = 9
    assert metal.values(second, "B")[0] == 9
    assert (size, align) == (1024, 256)


def test_heap_is_as_large_as_whole_pages(metal):
    assert metal.heap(20000).size() == metal.heap(20000).currentAllocatedSize() == 32768


def test_device_allocates_as_much_as_it_has(metal):
    before = metal.device.currentAllocatedSize()
    heaps = [metal.heap(4 * GIB) for _ in range(2)]
    assert metal.device.currentAllocatedSize() == before + 8 * GIB
    assert metal.buffer() is None
    assert metal.heap() is None
    heaps.pop()
    assert metal.buffer() is not None


def test_large_memory_costs_nothing_until_it_is_used(metal):
    metal.control.use("m2-ultra-192gib")
    device = metal.Metal.MTLCreateSystemDefaultDevice()
    buffers = [device.newBufferWithLength_options_(90 * GIB, 0) for _ in range(2)]
    assert None not in buffers
    view = buffers[0].contents().as_buffer(90 * GIB)
    view[90 * GIB - 1] = 1
    del view


def test_borrowed_memory(metal):
    mapped, freed = mmap.mmap(-1, 32768), []
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(mapped)) % 16384  # a page of macOS is larger than the host's
    memory = memoryview(mapped)[begin : begin + 16384]
    create = metal.device.newBufferWithBytesNoCopy_length_options_deallocator_
    buffer, commands = create(memory, 16384, 0, lambda _, length: freed.append(length)), metal.queue.commandBuffer()
    metal.fill(commands, buffer, 3, (0, 16384))
    assert metal.done(commands) is None
    assert memory[:2] == b"\3\3"
    assert freed == []
    del buffer  # the command buffer has released it when it completed
    assert freed == [16384]


def test_buffer_with_data(metal):
    buffer = metal.device.newBufferWithBytes_length_options_(b"abcd", 4, 0)
    assert bytes(metal.values(buffer, "B")) == b"abcd"


def test_objects_die_with_their_last_reference(metal):
    live = metal.control.live
    buffer = metal.buffer()
    assert live("MTLBuffer") == 1
    del buffer
    assert live("MTLBuffer") == 0


def test_pool_releases_command_buffers_and_encoders(metal):
    with metal.objc.autorelease_pool():
        metal.queue.commandBuffer().blitCommandEncoder().endEncoding()
        assert (metal.control.live("MTLCommandBuffer"), metal.control.live("MTLBlitCommandEncoder")) == (1, 1)
    assert (metal.control.live("MTLCommandBuffer"), metal.control.live("MTLBlitCommandEncoder")) == (0, 0)


@pytest.mark.parametrize("retained", [True, False])
def test_command_buffer_keeps_its_resources_until_it_completes(metal, retained):
    with metal.objc.autorelease_pool(), metal.control.held():
        name = "commandBuffer" if retained else "commandBufferWithUnretainedReferences"
        commands, buffer = getattr(metal.queue, name)(), metal.buffer()
        metal.fill(commands, buffer)
        assert commands.retainedReferences() is retained
        commands.commit()
        kept = [buffer]
        del buffer
        if retained:
            kept.clear()
            assert metal.control.live("MTLBuffer") == 1
        metal.control.release()
        commands.waitUntilCompleted()
        assert metal.control.live("MTLBuffer") == len(kept)


def test_queue_retains_committed_command_buffers(metal):
    with metal.control.held():
        with metal.objc.autorelease_pool():
            metal.queue.commandBuffer().commit()
        assert metal.control.live("MTLCommandBuffer") == 1
    done = metal.queue.commandBuffer()
    metal.done(done)
    assert metal.control.live("MTLCommandBuffer") == 1


def test_buffer_keeps_its_heap(metal):
    buffer = metal.heap().newBufferWithLength_options_(64, 0)
    assert metal.control.live("MTLHeap") == 1
    del buffer
    assert metal.control.live("MTLHeap") == 0


def test_purgeable_states(metal):
    names, buffer = metal.Metal, metal.buffer()
    states = [names.MTLPurgeableStateVolatile, names.MTLPurgeableStateKeepCurrent, names.MTLPurgeableStateNonVolatile]
    before = [buffer.setPurgeableState_(state) for state in states]
    assert before == [
        names.MTLPurgeableStateNonVolatile,
        names.MTLPurgeableStateVolatile,
        names.MTLPurgeableStateVolatile,
    ]
