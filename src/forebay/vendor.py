"""What those who write a backend need besides the contract, `forebay.spi`, and the errors.

Checks of arguments, books of addresses and pages, recordings, and random numbers that are PyTorch's.
"""

from __future__ import annotations

from forebay.address_allocator import Addresses
from forebay.backends.common import recorded_work
from forebay.backends.common.arguments import address_of, byte_of, index_of, integer_of, size_of
from forebay.backends.common.capture_recorder import CapturedMark, Recorder, Records, recorded_wait
from forebay.backends.common.cuda_errors import accelerator_error
from forebay.backends.common.draw_encoding import draw_now
from forebay.backends.common.page_ledger import Space, Spaces, space_of
from forebay.backends.common.recorded_work import reseeded, steps

__all__ = [
    "Addresses",
    "CapturedMark",
    "Recorder",
    "Records",
    "Space",
    "Spaces",
    "accelerator_error",
    "address_of",
    "byte_of",
    "draw_now",
    "index_of",
    "integer_of",
    "recorded_wait",
    "recorded_work",
    "reseeded",
    "size_of",
    "space_of",
    "steps",
]
