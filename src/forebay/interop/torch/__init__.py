"""Integration with PyTorch programs. Imports torch only when a function needs it."""

from __future__ import annotations

from forebay.interop.torch.allocator import use_allocator
from forebay.interop.torch.oom_recorder import OomRecorder, record_oom

__all__ = ["OomRecorder", "record_oom", "use_allocator"]
