"""PyTorch's text of an out-of-memory error."""

from __future__ import annotations

import torch

from forebay.errors import OutOfMemory
from forebay.runtime.allocator.oom_message import DOCUMENTATION

__all__ = ["pytorch_error"]

_WORDS = (
    ("non-forebay memory", "non-PyTorch memory"),
    ("by forebay", "by PyTorch"),
    ("FOREBAY_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    (
        DOCUMENTATION,
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf",
    ),
)


def pytorch_error(error: OutOfMemory) -> torch.OutOfMemoryError:
    """Return PyTorch's error with PyTorch's text; what forebay adds is a note of the error."""
    text, _, advice = str(error).partition("\n")
    for ours, theirs in _WORDS:
        text = text.replace(ours, theirs)
    made = torch.OutOfMemoryError(text)
    if advice:
        made.add_note(advice)
    return made
