"""Races between CUDA's streams, found when they are queued. (`torch.cuda._sanitizer`)

Switched on by `enable_cuda_sanitizer()`, or by the environment variable TORCH_CUDA_SANITIZER before `forebay.cuda` is
imported. `forebay.observe.races` is what looks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from forebay.cuda._kind import CUDA
from forebay.observe.races.detector import Detector
from forebay.observe.races.report import (
    Access,
    AccessType,
    CUDASanitizerErrors,
    SynchronizationError,
    UnsynchronizedAccessError,
)
from forebay.observe.races.vector_clocks import DEFAULT_STREAM_ID, StreamSynchronizations
from forebay.runtime.base import observers

__all__ = [
    "DEFAULT_STREAM_ID",
    "Access",
    "AccessType",
    "CUDASanitizer",
    "CUDASanitizerErrors",
    "StreamSynchronizations",
    "SynchronizationError",
    "UnsynchronizedAccessError",
    "cuda_sanitizer",
    "enable_cuda_sanitizer",
    "zip_by_key",
]

_K = TypeVar("_K")
_A = TypeVar("_A")
_B = TypeVar("_B")


class CUDASanitizer:
    """Looks for races between CUDA's streams while it is enabled, each time anew. Twice is once."""

    def __init__(self) -> None:
        self._detector = Detector(CUDA.name)

    @property
    def enabled(self) -> bool:
        return self._detector in observers.listeners  # of which a forked child has none

    def enable(self) -> None:
        if not self.enabled:
            self._detector = Detector(CUDA.name)
            observers.add(self._detector)

    def disable(self) -> None:
        observers.remove(self._detector)


cuda_sanitizer = CUDASanitizer()


def enable_cuda_sanitizer() -> None:
    """From now on an operation that races raises CUDASanitizerErrors, after its races were printed on stderr."""
    cuda_sanitizer.enable()


def zip_by_key(a: Mapping[_K, _A], b: Mapping[_K, _B]) -> Iterator[tuple[_K, _A, _B]]:
    """What both know by the same name, in the order of the first."""
    for key, value in a.items():
        if key in b:
            yield key, value, b[key]
