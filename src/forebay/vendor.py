"""What those who write a backend need besides the contract, `forebay.spi`, and the errors.

Checks of arguments, books of addresses and pages, recordings, and random numbers that are PyTorch's.
"""

from __future__ import annotations

from forebay.addresses import Addresses
from forebay.backends import work
from forebay.backends.arguments import address_of, byte_of, index_of, integer_of, size_of
from forebay.backends.cuda_errors import accelerator_error
from forebay.backends.drawing import draw_now
from forebay.backends.recorder import CapturedMark, Recorder, Records, recorded_wait
from forebay.backends.spaces import Space, Spaces, space_of
from forebay.backends.work import reseeded, steps

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
    "reseeded",
    "size_of",
    "space_of",
    "steps",
    "work",
]
