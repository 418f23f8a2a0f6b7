"""Building blocks for vendor backends, beside the contract `forebay.spi` and the exceptions in `forebay.errors`.

Argument validation, address and page bookkeeping, graph capture, and PyTorch-exact random numbers.
"""

from __future__ import annotations

from forebay._base.address_allocator import AddressAllocator
from forebay.backends.common import recorded_work
from forebay.backends.common.arguments import address_of, byte_of, index_of, integer_of, size_of
from forebay.backends.common.capture_recorder import CapturedMark, CaptureMixin, CaptureRecorder, wait_in_capture
from forebay.backends.common.cuda_errors import accelerator_error
from forebay.backends.common.draw_encoding import draw_now
from forebay.backends.common.page_ledger import AddressSpace, PageLedger, check_space_arguments
from forebay.backends.common.recorded_work import executed_nodes, launch_parts, reseeded_draw
from forebay.backends.common.strided_copy_encoding import copy_strided_now

__all__ = [
    "AddressAllocator",
    "AddressSpace",
    "CaptureMixin",
    "CaptureRecorder",
    "CapturedMark",
    "PageLedger",
    "accelerator_error",
    "address_of",
    "byte_of",
    "check_space_arguments",
    "copy_strided_now",
    "draw_now",
    "executed_nodes",
    "index_of",
    "integer_of",
    "launch_parts",
    "recorded_work",
    "reseeded_draw",
    "size_of",
    "wait_in_capture",
]
