"""The allocator as one would explain it, twice: a pool with default settings, and a whole device with any.

Sorted lists and plain counting, slow, and meant to be read and compared with. Where the native ones differ, they are
wrong; where PyTorch 2.15's allocator differs, this is wrong.
"""

from __future__ import annotations

from support.model.device import ModelDevice
from support.model.pool import KINDS, MIB, Counter, ModelBlock, ModelPool, ModelSegment, rounded, segment_size

__all__ = [
    "KINDS",
    "MIB",
    "Counter",
    "ModelBlock",
    "ModelDevice",
    "ModelPool",
    "ModelSegment",
    "rounded",
    "segment_size",
]
