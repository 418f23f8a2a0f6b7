"""The rules of Metal that the stand-in enforces, each with the page of Apple's documentation that states it."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    text: str
    source: str


RULES = {
    # processes and autorelease pools
    "fork": Rule("Metal is not used in a child process after fork", "fork(2) manual page of macOS, CAVEATS"),
    "pool": Rule(
        "an autoreleased object needs an autorelease pool, or it is never released",
        "Advanced Memory Management Programming Guide: Using Autorelease Pool Blocks",
    ),
    "over-release": Rule(
        "a program releases only references that it owns",
        "Advanced Memory Management Programming Guide: Memory Management Policy",
    ),
    "nil": Rule("an argument that is not nullable is not nil", "Objective-C: Designating Nullability"),
    "device": Rule("objects of different devices are not combined", "MTLResource device"),
    # resources
    "zero-size": Rule("a buffer or heap has at least one byte", "MTLDevice makeBuffer(length:options:)"),
    "max-length": Rule("a buffer is at most maxBufferLength bytes long", "MTLDevice maxBufferLength"),
    "options": Rule("resource options have one known mode of each kind", "MTLResourceOptions"),
    "managed": Rule(
        "managed storage is for devices without unified memory",
        "Metal: Choosing a Resource Storage Mode for Apple GPUs",
    ),
    "memoryless": Rule("a buffer is not memoryless", "Metal: Choosing a Resource Storage Mode for Apple GPUs"),
    "contents": Rule("the CPU does not access private storage", "MTLBuffer contents()"),
    "no-copy": Rule(
        "memory that a buffer takes over begins at a page and is whole pages long",
        "MTLDevice makeBuffer(bytesNoCopy:length:options:deallocator:)",
    ),
    "dead-memory": Rule("memory is not accessed after its buffer was released", "MTLBuffer contents()"),
    # heaps
    "heap-storage": Rule("a heap's storage is shared or private as its device allows", "MTLHeapDescriptor storageMode"),
    "heap-mode": Rule(
        "a buffer has the storage mode, cache mode and hazard tracking of its heap",
        "MTLHeap makeBuffer(length:options:)",
    ),
    "heap-type": Rule(
        "only placement heaps take offsets, and they take nothing else", "MTLHeap makeBuffer(length:options:offset:)"
    ),
    "heap-offset": Rule(
        "an offset is a multiple of the alignment that the device reports, and the buffer ends inside the heap",
        "MTLDevice heapBufferSizeAndAlign(length:options:)",
    ),
    "alignment": Rule("an alignment is a power of two", "MTLHeap maxAvailableSize(alignment:)"),
    "aliasable": Rule("only resources of automatic heaps are made aliasable", "MTLResource makeAliasable()"),
    "used-aliasable": Rule("a resource that was made aliasable is not used again", "MTLResource makeAliasable()"),
    "purged": Rule("a volatile or empty resource is not used", "MTLResource setPurgeableState(_:)"),
    # command queues and buffers
    "queue-size": Rule(
        "a queue holds at least one command buffer", "MTLDevice makeCommandQueue(maxCommandBufferCount:)"
    ),
    "queue-full": Rule(
        "a queue with its maximum of uncompleted command buffers blocks until one completes",
        "MTLDevice makeCommandQueue(maxCommandBufferCount:)",
    ),
    "commit-once": Rule("a command buffer commits once", "MTLCommandBuffer commit()"),
    "enqueue": Rule("a command buffer is enqueued before its commit", "MTLCommandBuffer enqueue()"),
    "committed": Rule("a committed command buffer takes no more commands", "MTLCommandBuffer commit()"),
    "handler": Rule("handlers are added before commit", "MTLCommandBuffer addCompletedHandler(_:)"),
    "block": Rule(
        "a handler raises nothing: the process would end", "Exception Programming Topics: Uncaught Exceptions"
    ),
    "wait-uncommitted": Rule(
        "a command buffer is committed before a wait for it", "MTLCommandBuffer waitUntilCompleted()"
    ),
    "wait-in-handler": Rule(
        "a completion handler does not wait for its own command buffer", "MTLCommandBuffer addCompletedHandler(_:)"
    ),
    "unretained": Rule(
        "resources of a command buffer with unretained references live until it completes",
        "MTLCommandQueue makeCommandBufferWithUnretainedReferences()",
    ),
    # encoders
    "one-encoder": Rule("a command buffer has one open encoder at a time", "MTLCommandBuffer"),
    "open-encoder": Rule("an encoder ends before its command buffer commits", "MTLCommandBuffer commit()"),
    "ended": Rule("an encoder that has ended takes no more commands", "MTLCommandEncoder endEncoding()"),
    "lost-encoder": Rule("an encoder ends before it is released", "MTLComputeCommandEncoder"),
    "threads": Rule(
        "one thread at a time encodes a command buffer",
        "Metal Programming Guide: Multiple Threads, Command Buffers, and Command Encoders",
    ),
    "range": Rule(
        "a range lies inside its buffer", "MTLBlitCommandEncoder copy(from:sourceOffset:to:destinationOffset:size:)"
    ),
    "multiple-of-4": Rule(
        "on macOS, offsets and sizes of copies and fills are multiples of 4",
        "MTLBlitCommandEncoder copy(from:sourceOffset:to:destinationOffset:size:)",
    ),
    "overlap": Rule(
        "source and destination of a copy do not overlap",
        "MTLBlitCommandEncoder copy(from:sourceOffset:to:destinationOffset:size:)",
    ),
    "fill-value": Rule(
        "a fill has a value from 0 to 127: PyObjC extends it as a signed char, and Metal expects an unsigned number",
        "Writing ARM64 code for Apple platforms: Pass arguments to functions correctly",
    ),
    "synchronize": Rule("only managed resources are synchronized", "MTLBlitCommandEncoder synchronize(resource:)"),
    "hazard": Rule(
        "passes that use an untracked resource are ordered by a fence, an event or the CPU",
        "MTLHazardTrackingMode.untracked",
    ),
    "fence": Rule(
        "a pass waits for a fence before it updates it, and once", "MTLComputeCommandEncoder waitForFence(_:)"
    ),
    # events
    "event-open": Rule("events are encoded between encoders", "MTLCommandBuffer encodeSignalEvent(_:value:)"),
    "event-grows": Rule("the value of an event only grows", "MTLSharedEvent signaledValue"),
    # compute
    "pipeline": Rule("a dispatch needs a pipeline", "MTLComputeCommandEncoder setComputePipelineState(_:)"),
    "binding-index": Rule("buffers have the indices 0 to 30", "Metal Feature Set Tables: buffer argument table"),
    "binding": Rule("each buffer argument of a kernel is bound", "MTLComputeCommandEncoder setBuffer(_:offset:index:)"),
    "binding-offset": Rule(
        "the offset of a binding lies inside the buffer and is aligned to the argument's type",
        "MTLComputeCommandEncoder setBuffer(_:offset:index:)",
    ),
    "binding-size": Rule(
        "bound data is at least as long as the argument's type", "MTLComputeCommandEncoder setBytes(_:length:index:)"
    ),
    "kernel-range": Rule("a kernel writes inside its buffers", "MTLCommandBufferError pageFault"),
    "bytes": Rule("setBytes copies 1 to 4096 bytes", "MTLComputeCommandEncoder setBytes(_:length:index:)"),
    "threadgroup-memory": Rule(
        "threadgroup memory is a multiple of 16 bytes, and within maxThreadgroupMemoryLength",
        "MTLComputeCommandEncoder setThreadgroupMemoryLength(_:index:)",
    ),
    "threadgroup-size": Rule(
        "a threadgroup has at least one thread and at most maxTotalThreadsPerThreadgroup",
        "MTLComputePipelineState maxTotalThreadsPerThreadgroup",
    ),
    "grid": Rule(
        "a grid has at least one thread", "MTLComputeCommandEncoder dispatchThreads(_:threadsPerThreadgroup:)"
    ),
    "nonuniform": Rule(
        "grids that are no multiple of the threadgroup need a family with nonuniform threadgroups",
        "MTLComputeCommandEncoder dispatchThreads(_:threadsPerThreadgroup:)",
    ),
    "icb-type": Rule(
        "an indirect command buffer has commands of the types that its descriptor allows",
        "MTLIndirectCommandBufferDescriptor commandTypes",
    ),
    "icb-range": Rule(
        "a range lies inside the commands of an indirect command buffer",
        "MTLDevice makeIndirectCommandBuffer(descriptor:maxCommandCount:options:)",
    ),
    "icb-inherit": Rule(
        "what an indirect command buffer inherits is not set in its commands",
        "MTLIndirectCommandBufferDescriptor inheritBuffers",
    ),
    "icb-pipeline": Rule(
        "indirect commands need pipelines that support them",
        "MTLComputePipelineDescriptor supportIndirectCommandBuffers",
    ),
    "icb-resident": Rule(
        "resources of indirect commands are declared with useResource or useHeap",
        "MTLComputeCommandEncoder useResource(_:usage:)",
    ),
    "counter-point": Rule(
        "samples are taken at the boundaries that the device supports", "MTLDevice supportsCounterSampling(_:)"
    ),
    "counter-range": Rule("a sample lies inside its sample buffer", "MTLCounterSampleBufferDescriptor sampleCount"),
    "counter-storage": Rule(
        "the CPU resolves samples in shared storage only", "MTLCounterSampleBuffer resolveCounterRange(_:)"
    ),
    "barrier": Rule(
        "all threads of a group reach each barrier", "Metal Shading Language Specification: threadgroup_barrier"
    ),
    "address-space": Rule(
        "pointers and references name an address space", "Metal Shading Language Specification: Address Spaces"
    ),
    "msl": Rule("MSL lacks these parts of C++", "Metal Shading Language Specification: C++ Restrictions"),
}


class MetalRuleViolation(AssertionError):
    """A call that breaks a rule of Metal; on a Mac the result is undefined or the process ends."""

    def __init__(self, key: str, detail: str) -> None:
        self.key = key
        rule = RULES[key]
        super().__init__(f"{detail}. Rule: {rule.text} ({rule.source})")


class NotImitated(NotImplementedError):
    """A use of Metal that the stand-in does not know."""
