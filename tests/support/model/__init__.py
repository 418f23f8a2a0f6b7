"""Reference models of the allocator: a pool with default settings, and a whole device with any settings.

Slow and simple (sorted lists, plain counting), for comparison. Where the native allocator differs from a model, the
allocator is wrong; where a model differs from PyTorch 2.15's allocator, the model is wrong.
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
