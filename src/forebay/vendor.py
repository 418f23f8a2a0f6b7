"""Building blocks for vendor backends, beside the contract `forebay.spi` and the exceptions in `forebay.errors`.

A backend imports nothing else of forebay. The parts are:

* validated arguments: `integer_of`, `size_of`, `byte_of`, `address_of`, `index_of`
* errors: `accelerator_error` with the codes in `cuda_errors`, `out_of_memory_error`
* start of a library, and its threads: `driver_timeout`, `signals_blocked`
* addresses and pages: `AddressAllocator`, `reserve_pages`, `unmap_memory`, `AddressSpace`, `PageLedger`,
  `check_space_arguments`
* random numbers and strided copies on the host: `draw_now`, `copy_strided_now`; as input of kernels: `pack_draw`,
  `is_valid_draw`, `written_range`, `element_size`, `simplify_strided_copy`, `SimplifiedCopy`, `touched_spans`;
  compiled kernels on disk: `KernelCache`
* graphs: `CaptureMixin`, `CaptureRecorder`, `CapturedMark`, `wait_in_capture`; the nodes: `recorded_work`,
  `launch_parts`, `executed_nodes`, `reseeded_draw`; the memory that they use: `ReleaseLog`, `MemorySource`,
  `CapturedMemory`
* events that processes share: `SharedEvent`; destructors that no interrupt splits: `Disposable`
"""

from __future__ import annotations

from forebay._base.address_allocator import AddressAllocator
from forebay._base.signal_mask import signals_blocked
from forebay.backends.common import cuda_errors, recorded_work
from forebay.backends.common._disposal import Disposable
from forebay.backends.common._releases import ReleaseLog
from forebay.backends.common.arguments import address_of, byte_of, index_of, integer_of, size_of
from forebay.backends.common.capture_recorder import CapturedMark, CaptureRecorder, wait_in_capture
from forebay.backends.common.captured_memory import CapturedMemory, MemorySource
from forebay.backends.common.capturing_queue import CaptureMixin
from forebay.backends.common.cuda_errors import accelerator_error
from forebay.backends.common.draw_encoding import draw_now, element_size, is_valid_draw, pack_draw, written_range
from forebay.backends.common.failures import driver_timeout, out_of_memory_error
from forebay.backends.common.kernel_cache import KernelCache
from forebay.backends.common.mmap import reserve_pages, unmap_memory
from forebay.backends.common.page_ledger import AddressSpace, PageLedger, check_space_arguments
from forebay.backends.common.recorded_work import executed_nodes, launch_parts, reseeded_draw
from forebay.backends.common.shared_slots import SharedEvent
from forebay.backends.common.strided_copy_encoding import (
    SimplifiedCopy,
    copy_strided_now,
    simplify_strided_copy,
    touched_spans,
)

__all__ = [
    "AddressAllocator",
    "AddressSpace",
    "CaptureMixin",
    "CaptureRecorder",
    "CapturedMark",
    "CapturedMemory",
    "Disposable",
    "KernelCache",
    "MemorySource",
    "PageLedger",
    "ReleaseLog",
    "SharedEvent",
    "SimplifiedCopy",
    "accelerator_error",
    "address_of",
    "byte_of",
    "check_space_arguments",
    "copy_strided_now",
    "cuda_errors",
    "draw_now",
    "driver_timeout",
    "element_size",
    "executed_nodes",
    "index_of",
    "integer_of",
    "is_valid_draw",
    "launch_parts",
    "out_of_memory_error",
    "pack_draw",
    "recorded_work",
    "reseeded_draw",
    "reserve_pages",
    "signals_blocked",
    "simplify_strided_copy",
    "size_of",
    "touched_spans",
    "unmap_memory",
    "wait_in_capture",
    "written_range",
]
