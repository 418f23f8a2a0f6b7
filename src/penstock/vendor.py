"""What those who write a backend need besides the contract, `penstock.spi`, and the errors.

Checks of arguments, books of addresses and pages, recordings, and random numbers that are PyTorch's.
"""

from __future__ import annotations

from penstock.addresses import Addresses
from penstock.backends import work
from penstock.backends.arguments import address_of, byte_of, index_of, integer_of, size_of
from penstock.backends.cuda_errors import accelerator_error
from penstock.backends.drawing import draw_now
from penstock.backends.recorder import CapturedMark, Recorder, Records, recorded_wait
from penstock.backends.spaces import Space, Spaces, space_of
from penstock.backends.work import reseeded, steps

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
