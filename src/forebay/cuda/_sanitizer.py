"""Detection of data races between CUDA streams when the work is queued (`torch.cuda._sanitizer`).

Enabled by `enable_cuda_sanitizer()`, or by the environment variable TORCH_CUDA_SANITIZER before `forebay.cuda` is
imported. `forebay.observe.races` implements the detection.
"""

from __future__ import annotations

from forebay.cuda._kind import CUDA
from forebay.observe.races.arguments import TK, ArgumentHandler, TVa, TVb, zip_arguments, zip_by_key
from forebay.observe.races.detector import Detector
from forebay.observe.races.event_handler import EventHandler, TensorInfo, TensorsAccessed
from forebay.observe.races.report import (
    Access,
    AccessType,
    CUDASanitizerErrors,
    SynchronizationError,
    UnsynchronizedAccessError,
)
from forebay.observe.races.vector_clocks import DEFAULT_STREAM_ID, StreamSynchronizations, logger
from forebay.runtime.base import observers

__all__ = [
    "DEFAULT_STREAM_ID",
    "TK",
    "Access",
    "AccessType",
    "ArgumentHandler",
    "CUDASanitizer",
    "CUDASanitizerErrors",
    "DataPtr",
    "EventHandler",
    "EventId",
    "SeqNum",
    "StreamId",
    "StreamSynchronizations",
    "SynchronizationError",
    "TVa",
    "TVb",
    "TensorInfo",
    "UnsynchronizedAccessError",
    "cuda_sanitizer",
    "enable_cuda_sanitizer",
    "logger",
    "zip_arguments",
    "zip_by_key",
]

DataPtr = StreamId = EventId = SeqNum = int
_TensorsAccessed = TensorsAccessed  # PyTorch's name


class CUDASanitizer:
    """Race detection between CUDA streams, off until `enable` is called.

    As `torch.cuda._sanitizer.CUDASanitizer`.
    """

    def __init__(self) -> None:
        self._detector = Detector(CUDA.name)

    @property
    def enabled(self) -> bool:
        """True while the sanitizer is enabled; False in a forked child."""
        return self._detector in observers.registered  # a forked child has no observers

    def enable(self) -> None:
        """Start detecting races, with no knowledge of earlier work. Does nothing if already enabled."""
        if not self.enabled:
            self._detector = Detector(CUDA.name)
            observers.add(self._detector)

    def disable(self) -> None:
        """Stop detecting races. Does nothing if already disabled."""
        observers.remove(self._detector)


cuda_sanitizer = CUDASanitizer()


def enable_cuda_sanitizer() -> None:
    """Enable race detection for the process.

    As `torch.cuda._sanitizer.enable_cuda_sanitizer`. A racing operation is queued; then its races are printed to
    stderr and CUDASanitizerErrors is raised.
    """
    cuda_sanitizer.enable()
